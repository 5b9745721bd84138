"""`kvctl top` on a terminal."""

import re
import signal
import time
from contextlib import suppress

import pytest

from tests.cli.dialogue import Dialogue
from tests.support.raw import RawClient
from tests.support.waiting import until
from tests.topology.conftest import Replicas


@pytest.fixture
def top(server, raw, unique):
    """The screen over a bucket with a mirror, filtered by the bucket's name."""
    bucket, mirror = unique("TOPPED"), unique("COPY")
    raw.create_bucket(bucket)
    raw.put(bucket, "k", b"v")
    Replicas(raw).mirror(mirror, bucket)
    until(lambda: Replicas(raw).info(mirror)["state"]["messages"])
    with Dialogue("top", "--interval", "300ms", "-s", server.url, COLUMNS="100", LINES="30") as dialogue:
        dialogue.hear("/ filter")
        dialogue.press(b"/" + bucket.encode() + b"\r")
        dialogue.hear(f"[{bucket}]")
        dialogue.bucket, dialogue.mirror = bucket, mirror
        yield dialogue


def test_a_bucket_is_shown_with_its_rate_and_its_replicas(top, raw):
    for number in range(20):
        raw.put(top.bucket, f"k.{number}", b"v")
    shown = top.hear("▁")
    assert re.search(rf"▸ +{top.bucket} +bucket +\d+ ", shown)
    assert f"{top.mirror} ✓" in top.hear(f"{top.mirror} ✓")


def test_keys_open_a_card_alternates_and_a_trace_and_q_ends(top):
    top.press(b"\r")
    assert top.mirror in top.hear("escape back")
    top.press(b"\x1b")
    top.hear("/ filter")
    top.press(b"a")
    top.hear("nearest first")
    top.press(b"\x1b")
    top.hear("/ filter")
    top.press(b"tk\r")
    top.hear("Goes to")
    top.press(b"\x1b")
    top.hear("/ filter")
    before = top.modes()
    top.press(b"q")
    top.hear("\x1b[?1049l")
    assert top.end() == 0
    assert top.modes() != before  # as it was before the screen


def test_a_filter_applies_while_it_is_typed(top):
    top.press(b"/-no")
    shown = top.hear(f"filter: {top.bucket}-no").rsplit("kvctl top", 1)[1]
    assert "▸" not in shown
    top.press(b"\x1b")
    assert top.bucket in top.hear("▸") + top.hear("/ filter")


def test_a_key_that_is_not_one_is_reported_and_the_screen_stays(top):
    top.press(b"t..\r")
    assert "is not" in top.hear("escape back")
    top.process.send_signal(signal.SIGINT)
    assert top.end() == 130


def test_many_replicas_do_not_raise_the_rate_of_requests(own_server):
    """With 40 mirrors a reading takes more than 40 requests; unbounded, ten readings a second would be tried."""
    with RawClient(own_server.url) as raw, RawClient(own_server.url) as counted:
        raw.create_bucket("ORDERS")
        for number in range(40):
            Replicas(raw).mirror(f"COPY{number}", "ORDERS")
        counted._send(b"SUB $JS.API.> 1\r\n")
        counted.flush()
        begun = time.monotonic()
        with Dialogue("top", "--interval", "100ms", "-s", own_server.url, COLUMNS="100", LINES="60") as dialogue:
            for _ in range(3):
                dialogue.hear(" requests/s")
            time.sleep(6)
        requests = _arrived(counted)
    assert requests > 40
    assert requests <= 10 * (time.monotonic() - begun) + 200


def test_a_pipe_is_refused(run):
    assert run("top").exit_code == 2


def _arrived(client: RawClient) -> int:
    """The number of messages of its subscription that a client has received."""
    number = 0
    with suppress(TimeoutError):
        while True:
            client._next()
            number += 1
    return number
