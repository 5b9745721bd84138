"""`kvctl top` on a terminal."""

import re
import signal
import time
from contextlib import suppress

import pytest

from kvctl.cli.top import KEYS, fitting_keys, headline
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


def test_list_is_sorted_by_size_writes_and_entries(top):
    """Entries, as in `bucket ls`: the number of subjects is not that of keys, as it counts deleted ones."""
    for column in ("size", "writes/s", "entries"):
        top.press(b"s")
        top.hear(f"{column} ▾")


def test_keys_open_a_card_alternates_and_a_trace_and_q_ends(top):
    top.press(b"\r")
    top.hear("escape back")
    top.hear("Replicated by")
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
    top.hear("escape back")
    assert "is not" in top.hear("escape back")
    top.process.send_signal(signal.SIGINT)
    assert top.end() == 130


def test_a_page_says_that_the_server_is_away_and_the_screen_stays(own_server):
    with RawClient(own_server.url) as raw:
        raw.create_bucket("ORDERS")
    with Dialogue("top", "--interval", "200ms", "-s", own_server.url, COLUMNS="100", LINES="30") as dialogue:
        dialogue.hear("ORDERS")
        own_server.kill()
        dialogue.hear("this screen shows the state of")
        for keys in (b"\r", b"a", b"tk\r"):
            dialogue.press(keys)
            dialogue.hear("Reading ORDERS")
            until(lambda: dialogue.hear("escape back").count("Not connected to") == 2)  # above the page, and on it
            dialogue.press(b"\x1b")
            dialogue.hear("/ filter")
        own_server.start()
        dialogue.press(b"\r")
        assert "KV_ORDERS" in dialogue.hear("KV_ORDERS")
        dialogue.press(b"q")
        assert dialogue.end() == 0


def test_keys_are_heard_while_an_answer_is_awaited(own_server):
    with RawClient(own_server.url) as raw:
        raw.create_bucket("ORDERS")
    with Dialogue("top", "--interval", "200ms", "-s", own_server.url, COLUMNS="100", LINES="30") as dialogue:
        dialogue.hear("ORDERS")
        own_server.pause()
        assert "no answer on" in dialogue.hear("this screen shows the state of")
        dialogue.press(b"/OR")
        dialogue.hear("filter: OR")
        dialogue.press(b"\rq")
        assert dialogue.end() == 0


def test_first_line_leaves_out_what_does_not_fit():
    states = [(" ✓ 2", "green"), (" ✗ 1", "red")]
    shown = {
        width: "".join(text for text, _ in headline(width, "hub (n1)", 12, 3, states, 6, "14:02:11"))
        for width in (60, 70, 100)
    }
    assert shown[100] == "kvctl top · hub (n1) · 12 buckets · 3 links ✓ 2 ✗ 1 · 6 requests/s   14:02:11"
    assert shown[70] == "kvctl top · hub (n1) · 12 buckets · 3 links ✓ 2 ✗ 1   14:02:11"
    assert shown[60] == "kvctl top · 12 buckets · 3 links ✓ 2 ✗ 1   14:02:11"


def test_last_line_keeps_the_key_that_ends_the_screen():
    assert fitting_keys(KEYS, 80) == KEYS
    assert fitting_keys(KEYS, 60) == "↑↓ choose  enter open  a alternates  t trace a key  q quit"
    assert fitting_keys(KEYS, 5) == "q quit"


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
