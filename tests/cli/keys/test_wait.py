"""`kvctl wait`: conditions, time limits, restarts."""

import json
import time
from collections.abc import Callable
from subprocess import Popen

import pytest

from tests.cli.keyed import Keyed
from tests.support.raw import RawClient

Start = Callable[..., "Popen[bytes]"]


def test_a_condition_that_holds_ends_it_at_once(keyed, snapshot):
    keyed.put("k", b"one")
    keyed.put("k", b"two")
    assert keyed("wait", "B", "k") == snapshot
    assert keyed("wait", "B", "k", tty=True) == snapshot
    assert keyed("wait", "B", "k", "--value", "two", "--revision-above", "1", "-o", "json") == snapshot
    assert keyed("wait", "B", "nope", "--missing") == snapshot
    keyed.delete("k")
    assert keyed("wait", "B", "k", "--missing").exit_code == 0


def test_time_runs_out(keyed, snapshot):
    keyed.put("k", b"one")
    assert keyed("wait", "B", "nope", "--wait-for", "200ms") == snapshot
    assert keyed("wait", "B", "k", "--value", "two", "--wait-for", "200ms") == snapshot
    assert keyed("wait", "B", "k", "--revision-above", "1", "--wait-for", "200ms") == snapshot
    assert keyed("wait", "B", "k", "--missing", "--wait-for", "1200ms") == snapshot
    assert keyed("wait", "B", "nope", "--wait-for", "0") == snapshot
    assert keyed.consumers_left() == 0


@pytest.mark.parametrize(
    ("options", "happens"),
    [
        ((), lambda keyed: keyed.put("k", b"new")),
        (("--value", "done"), lambda keyed: (keyed.put("k", b"begun"), keyed.put("k", b"done"))),
        (("--revision-above", "1"), lambda keyed: keyed.put("k", b"written again")),
    ],
    ids=["exists", "value", "revision"],
)
def test_it_wakes_when_it_happens(keyed, start, options, happens):
    if options:
        keyed.put("k", b"old")
    waiting = start("wait", keyed.name, "k", "-o", "json", *options, env=keyed.env())
    _wait_for_a_consumer(keyed)
    assert waiting.poll() is None
    happens(keyed)
    out, _ = waiting.communicate(timeout=25)  # a pull that nothing wakes rests for 30
    assert (waiting.returncode, json.loads(out)["revision"]) == (0, keyed.last_revision())


def test_missing_notices_what_vanishes_without_a_marker(keyed, start):
    keyed.put("k", b"v")
    waiting = start("wait", keyed.name, "k", "--missing", env=keyed.env())
    _wait_for_a_consumer(keyed)
    keyed.raw.api(f"STREAM.PURGE.KV_{keyed.name}", {"filter": f"$KV.{keyed.name}.k"})
    out, err = waiting.communicate(timeout=60)
    assert (waiting.returncode, out, err) == (0, b"", b"")


def test_it_goes_on_over_a_restart_of_the_server(own_server, start):
    with RawClient(own_server.url) as raw:
        raw.create_bucket("R")
        waiting = start("wait", "R", "k", "--wait-for", "120s", env={"NATS_URL": own_server.url})
        _wait_for_a_consumer(Keyed("R", own_server.url, raw))
    own_server.restart()
    with RawClient(own_server.url) as raw:
        raw.put("R", "k", b"after the restart")
    out, _ = waiting.communicate(timeout=60)
    assert (waiting.returncode, out.split(b"\t")[5]) == (0, b"after the restart")


def test_what_cannot_be_waited_for(keyed, snapshot):
    assert keyed("wait", "B", "k", "--missing", "--value", "v") == snapshot
    assert keyed("wait", "B", "k.*") == snapshot
    assert keyed("wait", "no-such-bucket-anywhere", "k").exit_code == 3


def _wait_for_a_consumer(keyed: Keyed) -> None:
    deadline = time.monotonic() + 60
    while not keyed.consumers():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _wait_until_nobody_asks(raw: RawClient) -> None:
    """Wait until the server answered no request of others for half a second."""
    deadline = time.monotonic() + 60
    seen = -1
    while (total := int(raw.api("INFO")["api"]["total"])) != seen + 1:
        assert time.monotonic() < deadline
        seen = total
        time.sleep(0.5)


@pytest.mark.parametrize("options", [(), ("--missing",), ("--value", "new"), ("--revision-above", "7")])
def test_a_wait_that_cannot_look_when_the_time_is_up_exits_5(own_server, start, options):
    with RawClient(own_server.url) as raw:
        raw.create_bucket("R")
        if options == ("--missing",):
            raw.put("R", "k", b"v")
        limits = ("--wait-for", "3s", "--timeout", "1s")
        waiting = start("wait", "R", "k", *limits, *options, env={"NATS_URL": own_server.url})
        _wait_for_a_consumer(Keyed("R", own_server.url, raw))
        _wait_until_nobody_asks(raw)
    own_server.pause()
    _, err = waiting.communicate(timeout=60)
    assert (waiting.returncode, b"after the timeout" in err) == (5, True), err
