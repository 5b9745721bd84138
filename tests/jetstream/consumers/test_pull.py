"""ADR-37's defaults and constraints, and when consume asks for more."""

from datetime import timedelta

import pytest

from kvctl.errors import UsageError
from kvctl.jetstream.consumers.consume import Buffer
from kvctl.jetstream.consumers.pull import (
    PLENTY,
    ConsumeOptions,
    FetchOptions,
    Meaning,
    PullStatus,
    meaning_of,
    read_status,
)


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "needs a maximum"),
        ({"max_messages": 0}, "`max_messages` must be at least 1"),
        ({"max_bytes": 0}, "`max_bytes` must be at least 1"),
        ({"max_messages": 1, "expires": seconds(0)}, "must be greater than 0"),
        ({"max_messages": 1, "idle_heartbeat": seconds(0.4)}, "500ms to 30s, not 400ms"),
        ({"max_messages": 1, "idle_heartbeat": seconds(31), "expires": seconds(90)}, "500ms to 30s, not 31s"),
        ({"max_messages": 1, "idle_heartbeat": seconds(2), "expires": seconds(3)}, "at most half of `expires`"),
    ],
)
def test_a_fetch_that_the_adr_forbids_is_a_usage_error(options, problem):
    with pytest.raises(UsageError, match=problem):
        FetchOptions(**options)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"max_messages": 10, "max_bytes": 10}, "cannot be combined"),
        ({"max_messages": 10, "threshold_messages": 11}, r"0 to `max_messages` \(10\), not 11"),
        ({"threshold_messages": 501}, r"\(500\), not 501"),
        ({"max_bytes": 10, "threshold_bytes": 11}, r"0 to `max_bytes` \(10\), not 11"),
        ({"threshold_bytes": 1}, "needs `max_bytes`"),
        ({"max_bytes": 10, "threshold_messages": 1}, "needs `max_messages`"),
        ({"expires": seconds(0.5)}, "at least 1 second"),
        ({"idle_heartbeat": seconds(0.1)}, "500ms to 30s"),
        ({"idle_heartbeat": seconds(31), "expires": seconds(90)}, "500ms to 30s"),
        ({"count": 0}, "at least 1"),
    ],
)
def test_a_consume_that_the_adr_forbids_is_a_usage_error(options, problem):
    with pytest.raises(UsageError, match=problem):
        ConsumeOptions(**options)


def test_the_defaults_are_the_adrs():
    pull = Buffer(ConsumeOptions()).next_pull(0, 0)
    assert (pull.batch, pull.max_bytes, pull.expires, pull.heartbeat) == (500, 0, 30, 15)
    fetch = FetchOptions(max_messages=10).pull()
    assert (fetch.batch, fetch.max_bytes, fetch.expires, fetch.heartbeat) == (10, 0, 30, 0)


@pytest.mark.parametrize(("expires", "heartbeat"), [(1, 0.5), (10, 5), (60, 30), (600, 30)])
def test_the_heartbeat_is_half_of_expires_up_to_30_seconds(expires, heartbeat):
    assert ConsumeOptions(expires=seconds(expires)).heartbeat == seconds(heartbeat)


def test_a_fetch_over_30_seconds_has_heartbeats_by_itself():
    assert FetchOptions(max_messages=1, expires=seconds(30)).pull().heartbeat == 0
    assert FetchOptions(max_messages=1, expires=seconds(40)).pull().heartbeat == 20


def test_a_pull_by_size_asks_for_plenty_of_messages():
    assert FetchOptions(max_bytes=1000).pull().batch == PLENTY
    pull = Buffer(ConsumeOptions(max_bytes=1000)).next_pull(0, 0)
    assert (pull.batch, pull.max_bytes) == (PLENTY, 1000)


def test_buffer_is_refilled_at_the_threshold():
    buffer = Buffer(ConsumeOptions(max_messages=100))
    assert buffer.next_pull(51, 0) is None
    pull = buffer.next_pull(50, 0)
    assert pull.batch == 50
    by_size = Buffer(ConsumeOptions(max_bytes=1000, threshold_bytes=300))
    assert by_size.next_pull(PLENTY, 301) is None
    pull = by_size.next_pull(PLENTY, 300)
    assert pull.max_bytes == 700


@pytest.mark.parametrize("threshold", [None, 0, 1])
def test_a_buffer_of_one_message_does_not_get_stuck(threshold):
    buffer = Buffer(ConsumeOptions(max_messages=1, threshold_messages=threshold))
    pull = buffer.next_pull(0, 0)
    assert pull.batch == 1
    assert buffer.next_pull(1, 0) is None  # no pull of nothing, which servers take for one


def test_a_pull_whose_bytes_were_filled_exactly_is_over():
    pull = Buffer(ConsumeOptions(max_bytes=1000, count=10)).next_pull(6, 0, left=6)
    assert (pull.batch, pull.max_bytes) == (6, 1000)


def test_a_count_is_never_exceeded():
    buffer = Buffer(ConsumeOptions(max_messages=100, count=30))
    pull = buffer.next_pull(0, 0, left=30)
    assert pull.batch == 30
    assert buffer.next_pull(30, 0, left=30) is None


@pytest.mark.parametrize(
    ("text", "batch", "size", "expires", "heartbeat"),
    [
        ("Exceeded MaxRequestBatch of 7", 7, 0, 30, 15),
        ("Exceeded MaxRequestExpires of 4s", 100, 0, 4, 2),
        ("Exceeded MaxRequestExpires of 500ms", 100, 0, 0.5, 0.25),
    ],
)
def test_buffer_adapts_to_the_limit_that_a_refusal_names(text, batch, size, expires, heartbeat):
    buffer = Buffer(ConsumeOptions(max_messages=100))
    assert buffer.adapt(read_status(f"NATS/1.0 409 {text}\r\n\r\n".encode()))
    pull = buffer.next_pull(0, 0)
    assert (pull.batch, pull.max_bytes, pull.expires, pull.heartbeat) == (batch, size, expires, heartbeat)


def test_buffer_does_not_adapt_twice_or_to_other_refusals():
    buffer = Buffer(ConsumeOptions(max_bytes=1000))
    limit = read_status(b"NATS/1.0 409 Exceeded MaxRequestMaxBytes of 100\r\n\r\n")
    assert (buffer.adapt(limit), buffer.adapt(limit)) == (True, False)
    assert not buffer.adapt(read_status(b"NATS/1.0 409 Exceeded MaxWaiting\r\n\r\n"))


@pytest.mark.parametrize(
    ("code", "text", "meaning"),
    [
        (100, "Idle Heartbeat", Meaning.ALIVE),
        (400, "Bad Request - heartbeat value too large", Meaning.BAD),
        (404, "No Messages", Meaning.ENDED),
        (408, "Request Timeout", Meaning.ENDED),
        (408, "Interest Expired", Meaning.ENDED),
        (409, "Message Size Exceeds MaxBytes", Meaning.ENDED),
        (409, "Batch Completed", Meaning.ENDED),
        (409, "Consumer Deleted", Meaning.GONE),
        (409, "Consumer is push based", Meaning.GONE),
        (409, "Exceeded MaxRequestBatch of 1", Meaning.REFUSED),
        (409, "Exceeded MaxRequestExpires of 1s", Meaning.REFUSED),
        (409, "Exceeded MaxRequestMaxBytes of 1", Meaning.REFUSED),
        (409, "Exceeded MaxWaiting", Meaning.REFUSED),
        (409, "Leadership Change", Meaning.LOST),
        (409, "Server Shutdown", Meaning.LOST),
        (409, "Something Of The Future", Meaning.LOST),
        (423, "Nats-Pin-Id mismatch", Meaning.UNPINNED),
        (503, "", Meaning.LOST),
    ],
)
def test_the_table_of_statuses(code, text, meaning):
    assert meaning_of(code, text) is meaning


def test_a_status_says_what_is_left_of_the_pull():
    header = b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 7\r\nNats-Pending-Bytes: 1024\r\n\r\n"
    assert read_status(header) == PullStatus(408, "Request Timeout", Meaning.ENDED, 7, 1024)
    assert str(read_status(header)) == "Request Timeout (408)"
    assert str(read_status(b"NATS/1.0 503\r\n\r\n")) == "nobody answers (503)"
