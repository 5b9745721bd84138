"""The proxy that injects faults does what its rules say."""

import threading
import time

import pytest

from tests.support.proxy import DOWN, Cut, Delay, Late, LoseAnswer, Proxy, Swallow
from tests.support.raw import RawClient

ENDED = (ConnectionError, TimeoutError, OSError)


@pytest.fixture
def through(proxy, raw, bucket_name):
    """A client behind the proxy, which does not wait long for answers; the bucket is there."""
    raw.create_bucket(bucket_name, max_msgs_per_subject=10)
    with RawClient(proxy.url) as client:
        client._socket.settimeout(1)
        yield client


def stored(raw: RawClient, bucket: str) -> int:
    return int(raw.api(f"STREAM.INFO.KV_{bucket}")["state"]["last_seq"])


def eventually_stored(raw: RawClient, bucket: str, count: int) -> None:
    deadline = time.monotonic() + 10
    while stored(raw, bucket) < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_frames_of_all_sizes_pass_unchanged(through, raw, bucket_name):
    for number, size in enumerate((0, 1, 65_535, 65_536, 900_000), 1):
        assert through.put(bucket_name, "k", b"\r\nPUB " + b"x" * size, {"A": "b"}) == number
        reply = raw.request(f"$JS.API.DIRECT.GET.KV_{bucket_name}.$KV.{bucket_name}.k")
        assert reply.data == b"\r\nPUB " + b"x" * size


def test_connections_of_clients_can_be_cut_from_their_first_frame_on(server, monkeypatch):
    start, counts = threading.Thread.start, []

    def slowly(self: threading.Thread) -> None:
        start(self)
        time.sleep(0.1)

    monkeypatch.setattr(threading.Thread, "start", slowly)
    with Proxy(server.url) as proxy:
        proxy.on(b"INFO ", Delay(0), way=DOWN, hook=lambda: counts.append(len(proxy.connections)))
        with RawClient(proxy.url):
            assert counts == [1]


@pytest.mark.parametrize("at", [0, 1, 20, 40])
def test_cut_request_is_not_stored(proxy, through, raw, bucket_name, at):
    rule = proxy.on(b".k ", Cut(at))
    with pytest.raises(ENDED):
        through.put(bucket_name, "k", b"a value of some length")
    assert rule.seen.is_set()
    assert stored(raw, bucket_name) == 0


@pytest.mark.parametrize("cut", [True, False])
def test_request_whose_answer_is_lost_is_stored(proxy, through, raw, bucket_name, cut):
    proxy.on(b".k ", LoseAnswer(cut=cut))
    with pytest.raises(ConnectionError if cut else TimeoutError):
        through.put(bucket_name, "k", b"v")
    assert stored(raw, bucket_name) == 1


def test_late_request_is_stored_after_the_client_was_cut_off(proxy, through, raw, bucket_name):
    proxy.on(b".k ", Late(0.5))
    with pytest.raises(ConnectionError):
        through.put(bucket_name, "k", b"v")
    assert stored(raw, bucket_name) == 0
    eventually_stored(raw, bucket_name, 1)


def test_hook_runs_before_a_delayed_request_arrives(proxy, through, raw, bucket_name):
    proxy.on(b".k ", Delay(0.1), hook=lambda: raw.put(bucket_name, "k", b"theirs"))
    assert through.put(bucket_name, "k", b"ours") == 2


def test_rule_applies_to_as_many_frames_as_it_says(proxy, through, raw, bucket_name):
    proxy.on(b'"seq"', Swallow(), way=DOWN, times=2)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            through.put(bucket_name, "k", b"v")
        through._lines = through._socket.makefile("rb")  # a file that timed out cannot be read again
    assert through.put(bucket_name, "k", b"v") == 3


def test_refused_connections_end_and_later_ones_pass(proxy):
    proxy.refuse()
    with pytest.raises((ConnectionError, ValueError)):
        RawClient(proxy.url)
    proxy.refuse(0)
    RawClient(proxy.url).close()
    assert proxy.accepted == 1


def test_stalled_proxy_forwards_when_it_resumes(proxy, through, bucket_name):
    proxy.stall()
    threading.Timer(0.3, proxy.resume).start()
    begun = time.monotonic()
    assert through.put(bucket_name, "k", b"v") == 1
    assert time.monotonic() - begun > 0.2


def test_all_connections_end_at_once(proxy, through):
    proxy.cut()
    with pytest.raises(ENDED):
        through.flush()
