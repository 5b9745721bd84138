"""Changes of keys: `kvctl watch` and `kvctl wait`."""

import json
import os
import signal
import subprocess
import time

import pytest

from kvctl.cli.exec import shell_syntax
from tests.cli.keyed import Keyed
from tests.support.raw import RawClient
from tests.support.waiting import until

CURRENT = '{"event": "current"}'


@pytest.fixture
def filled(keyed):
    """Keys a.1 (two values), b.1 and gone, which is deleted."""
    for key in ("a.1", "b.1", "gone", "a.1"):
        keyed.put(key, b"of " + key.encode())
    keyed.delete("gone")
    return keyed


def test_watch_shows_current_entries_then_the_marker(filled, snapshot):
    assert filled("watch", "B", "--until-current", "-o", "ndjson") == snapshot
    assert filled("watch", "B", "--until-current") == snapshot
    assert filled("watch", "B", "--until-current", tty=True) == snapshot
    assert filled("watch", "B", "--until-current", "-o", "name").out.split() == ["b.1", "a.1", "gone"]


def test_watch_options_choose_entries(filled, snapshot):
    def keys(*options: str) -> list[str]:
        return filled("watch", "B", "--until-current", "-o", "name", *options).out.split()

    assert keys("a.*", "gone") == ["a.1", "gone"]
    assert keys("--history") == ["a.1", "b.1", "gone", "a.1", "gone"]
    assert keys("--ignore-deletes") == ["b.1", "a.1"]
    assert keys("--from-revision", "4") == ["a.1", "gone"]
    assert keys("--count", "2") == ["b.1", "a.1"]
    assert filled("watch", "B", "--until-current", "--meta-only", "-o", "ndjson") == snapshot
    assert filled("watch", "B", "--until-current", "--meta-only", tty=True) == snapshot
    assert filled("watch", "B", "--until-current", "-o", "json", "--encoding", "base64", "b.1") == snapshot


@pytest.mark.guarantee("reading-18")
def test_watch_since_a_time_begins_with_its_entries(filled):
    def keys(*options: str) -> list[str]:
        return filled("watch", "B", "--until-current", "-o", "name", *options).out.split()

    entries = [json.loads(line) for line in filled("history", "B", "-o", "ndjson").out.splitlines()]
    assert keys("--since", entries[1]["created"]) == [entry["key"] for entry in entries[1:]]
    assert keys("--since", "-1h", "b.*") == ["b.1"]
    assert keys("--since", "2100-01-01T00:00:00Z") == []


def test_watch_always_prints_the_marker(filled):
    for options in (("nothing.>",), ("--updates-only",), ("--ignore-deletes", "gone"), ("--from-revision", "6")):
        assert filled("watch", "B", "--until-current", "-o", "ndjson", *options).out == f"{CURRENT}\n"


def test_watch_from_revision_beyond_the_next_exits_3(filled):
    refused = filled("watch", "B", "--from-revision", "99")
    assert (refused.exit_code, refused.out) == (3, "")
    assert "has no revision 99" in refused.err


def test_watch_follows_changes_until_count(keyed, start):
    watch = start("watch", keyed.name, "--count", "3", "-o", "ndjson", env=keyed.env())
    assert _line(watch) == CURRENT
    keyed.put("k", b"one")
    keyed.delete("k")
    keyed.put("k", b"two")
    rows = [json.loads(_line(watch)) for _ in range(3)]
    assert [(row["operation"], row["value"]) for row in rows] == [("PUT", "one"), ("DEL", ""), ("PUT", "two")]
    assert watch.wait(60) == 0
    assert keyed.consumers_left() == 0


@pytest.mark.guarantee("commands-2", by="fault")
@pytest.mark.parametrize("options", [(), ("-o", "ndjson")], ids=" ".join)
def test_watch_ends_when_its_reader_leaves_although_nothing_is_written(filled, keyed, start, options):
    watch = start("watch", keyed.name, *options, env=keyed.env())
    _line(watch)
    watch.stdout.close()
    assert (watch.wait(10), watch.stderr.read()) == (0, b"")
    assert keyed.consumers_left() == 0


@pytest.mark.parametrize("again", [False, True])
def test_watch_of_a_deleted_bucket_is_an_error(keyed, start, again):
    watch = start("watch", keyed.name, "-o", "ndjson", env=keyed.env())
    assert _line(watch) == CURRENT
    keyed.raw.api(f"STREAM.DELETE.KV_{keyed.name}")
    if again:
        keyed.raw.create_bucket(keyed.name)
    _, err = watch.communicate(timeout=60)
    assert (watch.returncode, b"was deleted" in err) == (1, True)


def test_exec_runs_a_command_for_each_entry(filled, tmp_path, snapshot):
    filled.put("ttl", b"x", {"Nats-TTL": "1h"})
    filled.put("ttl", b"", {"Nats-Marker-Reason": "MaxAge"})
    facts = ("BUCKET", "KEY", "REVISION", "OPERATION", "REASON", "TTL", "SIZE")
    show = f"sh -c 'echo {' '.join(f'[$KVCTL_{name}]' for name in facts)}: $(cat)'"
    assert filled("watch", "B", "--until-current", "--history", "--exec", show) == snapshot


def test_exec_runs_no_shell(filled, snapshot):
    assert filled("watch", "B", "b.1", "--until-current", "--exec", "echo $KVCTL_KEY; exit 3 | cat") == snapshot


@pytest.mark.parametrize(
    ("text", "syntax"),
    [
        ('echo "got $KVCTL_KEY"', "$KVCTL_KEY"),
        ("./handle && ./count", "&&"),
        ("tee out.txt >log", ">"),
        ("awk '{print $NF}'", None),
        ('logger "first; second"', None),
        ('sh -c "echo $KVCTL_KEY | wc"', None),
        (r"echo \$KVCTL_KEY", None),
    ],
)
def test_commands_that_need_a_shell_are_recognised(text, syntax):
    assert shell_syntax(text) == syntax


def test_exec_goes_on_after_a_failure_and_reports_it(filled, snapshot):
    fails = "sh -c 'test $KVCTL_KEY != b.1 && echo $KVCTL_KEY'"
    assert filled("watch", "B", "--until-current", "--exec", fails) == snapshot
    assert filled("watch", "B", "--count", "1", "--exec", "sh -c 'kill -9 $$'") == snapshot


def test_exec_with_a_command_that_does_not_read_a_large_value(keyed):
    keyed.put("k", b"x" * 900_000)
    assert keyed("watch", "B", "--until-current", "--exec", "true").exit_code == 0


def test_exec_with_names_that_are_not_text(keyed, tmp_path):
    with RawClient(keyed.url) as raw:
        raw._send(
            b"PUB $KV.%b.a\xffb 0\r\n\r\nPUB $KV.%b.nul\x00 0\r\n\r\n" % (keyed.name.encode(), keyed.name.encode())
        )
        raw.flush()
    result = keyed("watch", "B", "--until-current", "--exec", "sh -c 'printf %s $KVCTL_KEY'")
    assert result.stdout == b"a\xffb"
    assert (result.exit_code, "an environment variable cannot hold a NUL byte" in result.err) == (7, True)


def test_exec_is_ended_with_the_watch(filled, start, tmp_path):
    pid = tmp_path / "pid"
    watch = start("watch", filled.name, "--exec", f"sh -c 'echo $$ > {pid}; exec sleep 60'", env=filled.env())
    until(lambda: pid.exists() and pid.read_text().endswith("\n"))
    watch.send_signal(signal.SIGTERM)
    assert watch.wait(60) == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def _line(process: "subprocess.Popen[bytes]") -> str:
    return process.stdout.readline().decode().rstrip("\n")


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
    late = keyed("wait", "B", "k", "--value", "one", "--revision-above", "9", "--wait-for", "200ms")
    assert (late.exit_code, "`k` was not written after revision 9" in late.err) == (9, True)
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


def test_an_unknown_bucket_is_not_waited_for(keyed):
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


@pytest.mark.parametrize("options", [("--missing",), ("--value", "new")])
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
