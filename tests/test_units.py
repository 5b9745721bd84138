"""Durations, sizes and times: text to value and back, exactly."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvctl.errors import UsageError
from kvctl.units import (
    MAX_INT64,
    SECOND_NS,
    duration_from_ns,
    duration_ns,
    duration_seconds,
    format_age,
    format_duration,
    format_limit,
    format_moment,
    format_size,
    format_time,
    parse_duration,
    parse_size,
    parse_time,
    parse_utc,
)

LONGEST = timedelta(microseconds=MAX_INT64 // 1000)
NOW = 1_800_000_000 * SECOND_NS
FIRST_NS = -62_135_596_800 * SECOND_NS
LAST_NS = 253_402_300_800 * SECOND_NS - 1


class TestDurations:
    @pytest.mark.parametrize(
        ("text", "seconds"),
        [
            ("0", 0),
            ("0s", 0),
            ("90s", 90),
            ("15m", 900),
            ("2h", 7200),
            ("7d", 604_800),
            ("2w", 1_209_600),
            ("1y", 31_536_000),
            ("1h30m", 5400),
            ("1.5h", 5400),
            ("250ms", 0.25),
            ("3us", 3e-6),
            ("3µs", 3e-6),
            ("3μs", 3e-6),
            ("2500ns", 2e-6),
            ("0.1s", 0.1),
        ],
    )
    def test_are_read(self, text, seconds):
        assert parse_duration(text) == timedelta(seconds=seconds)

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "s",
            "5",
            "1h30",
            "-5s",
            "5 s",
            " 5s",
            "5s ",
            "5s\n",
            "1.s",
            ".5s",
            "1e3s",
            "5S",
            "5x",
            "٥s",
            "9" * 5000 + "s",
        ],
    )
    def test_are_refused_when_they_are_none(self, text):
        with pytest.raises(UsageError, match="is not a duration"):
            parse_duration(text)

    def test_are_refused_when_the_server_cannot_count_them(self):
        assert parse_duration(format_duration(LONGEST)) == LONGEST
        for text in ("293y", "9" * 18 + "y"):
            with pytest.raises(UsageError, match="is too long"):
                parse_duration(text)

    def test_durations_do_not_round_to_zero(self):
        """A ttl of zero is no ttl."""
        for text in ("1ns", "999ns", "0.9us", "0.0001us"):
            with pytest.raises(UsageError, match="is too short"):
                parse_duration(text)

    @given(st.timedeltas(min_value=timedelta(), max_value=LONGEST))
    def test_round_trip(self, duration):
        assert parse_duration(format_duration(duration)) == duration

    @given(st.integers(0, MAX_INT64))
    def test_nanoseconds_lose_only_what_is_below_a_microsecond(self, nanoseconds):
        assert duration_ns(duration_from_ns(nanoseconds)) == nanoseconds - nanoseconds % 1000

    @pytest.mark.parametrize(
        ("duration", "text"),
        [
            (timedelta(), "0s"),
            (timedelta(hours=1, minutes=30), "1h30m"),
            (timedelta(days=7), "7d"),
            (timedelta(days=400), "400d"),
            (timedelta(days=1825), "5y"),
            (timedelta(microseconds=1_000_001), "1s1us"),
            (timedelta(milliseconds=250), "250ms"),
            (timedelta(seconds=-90), "-1m30s"),
        ],
    )
    def test_are_written(self, duration, text):
        assert format_duration(duration) == text

    def test_full_seconds_are_integers_in_json(self):
        assert repr(duration_seconds(timedelta(hours=1))) == "3600"
        assert repr(duration_seconds(timedelta(milliseconds=1500))) == "1.5"


class TestSizes:
    @pytest.mark.parametrize(
        ("text", "size"),
        [
            ("0", 0),
            ("512", 512),
            ("512B", 512),
            ("64KiB", 65536),
            ("64 KiB", 65536),
            ("64k", 65536),
            ("10MB", 10_000_000),
            ("10mb", 10_000_000),
            ("1M", 1_048_576),
            ("1.5GiB", 1_610_612_736),
            ("2TB", 2 * 10**12),
            ("0.5k", 512),
            ("9007199254740993", 9_007_199_254_740_993),
            ("9223372036854775807", MAX_INT64),
        ],
    )
    def test_are_read(self, text, size):
        assert parse_size(text) == size

    @pytest.mark.parametrize("text", ["", "-1", "k", "1 000", "1,5k", "1e3", "5 XB", "5\n", "٥", "9" * 5000])
    def test_are_refused_when_they_are_none(self, text):
        with pytest.raises(UsageError, match="is not a size"):
            parse_size(text)

    def test_are_refused_when_the_server_cannot_count_them(self):
        for text in ("9223372036854775808", "8388608T", "9" * 19 + "TiB"):
            with pytest.raises(UsageError, match="is too large"):
                parse_size(text)

    def test_are_refused_in_parts_of_bytes(self):
        with pytest.raises(UsageError, match="is not a whole number of bytes"):
            parse_size("1.5")

    @pytest.mark.parametrize(
        ("size", "text"),
        [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1_048_575, "1.0 MiB"),
            (1_048_576, "1.0 MiB"),
            (1_610_612_736, "1.5 GiB"),
            (1024**4 - 1, "1.0 TiB"),
            (MAX_INT64, "8192.0 PiB"),
        ],
    )
    def test_are_written(self, size, text):
        assert format_size(size) == text

    @given(st.integers(0, MAX_INT64))
    @example(1024**2 - 1)
    def test_written_ones_are_read_as_nearly_the_same(self, size):
        text = format_size(size)
        if not text.endswith("PiB"):
            assert parse_size(text) == pytest.approx(size, rel=0.06)


class TestTimes:
    @pytest.mark.parametrize(
        ("text", "nanoseconds"),
        [
            ("1970-01-01T00:00:00Z", 0),
            ("1970-01-01T00:00:01.5Z", 1_500_000_000),
            ("1970-01-01 00:00:01Z", SECOND_NS),
            ("1970-01-01t00:00:01z", SECOND_NS),
            ("2026-01-31T12:00:00.000000001Z", 1_769_860_800 * SECOND_NS + 1),
            ("2026-01-31T12:00:00+02:00", 1_769_853_600 * SECOND_NS),
            ("1969-12-31T23:59:59.999999999Z", -1),
            ("0001-01-01T00:00:00Z", FIRST_NS),
        ],
    )
    def test_are_read(self, text, nanoseconds):
        assert parse_time(text) == nanoseconds

    @pytest.mark.parametrize(("text", "ago"), [("-15m", 900), ("-1h30m", 5400), ("-0", 0), ("-7d", 604_800)])
    def test_ago(self, text, ago):
        assert parse_time(text, NOW) == NOW - ago * SECOND_NS

    def test_ago_is_from_now(self):
        now = datetime.now(UTC).timestamp() * SECOND_NS
        assert parse_time("-1h") == pytest.approx(now - 3600 * SECOND_NS, abs=5 * SECOND_NS)

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "now",
            "15m",
            "2026-01-31",
            "2026-01-31T12:00:00",
            "2026-02-30T12:00:00Z",
            "2026-01-31T25:00:00Z",
            "2026-01-31T12:00:60Z",
            "2026-01-31T12:00:00.1234567890Z",
            "2026-01-31T12:00:00+99:00",
            "1769860800",
            "2026-01-31T12:00:00Z\n",
            "٢٠٢٦-01-31T12:00:00Z",
        ],
    )
    def test_are_refused_when_they_are_none(self, text):
        with pytest.raises(UsageError, match="is not a time"):
            parse_time(text)

    @given(st.integers(FIRST_NS, LAST_NS))
    @example(FIRST_NS)
    @example(LAST_NS)
    @example(-1)
    def test_round_trip_to_the_nanosecond(self, nanoseconds):
        text = format_time(nanoseconds)
        assert len(text) == len("2026-01-31T12:00:00.000000001Z")
        assert parse_time(text) == parse_utc(text) == nanoseconds

    @pytest.mark.parametrize(
        "text", ["2026-01-31T12:00:00Z", "2026-01-31T12:00:00.5Z", "2026-01-31T12:00:00.123456789Z"]
    )
    def test_quick_reader_agrees(self, text):
        assert parse_utc(text) == parse_time(text)

    @pytest.mark.parametrize(
        ("seconds", "text"),
        [
            (-5, "just now"),
            (0.9, "just now"),
            (1, "1s ago"),
            (59.9, "59s ago"),
            (60, "1m ago"),
            (3599, "59m ago"),
            (3600, "1h ago"),
            (86_399, "23h ago"),
            (86_400, "1 day ago"),
            (31_536_000, "1 year ago"),
            (70_000_000, "2 years ago"),
        ],
    )
    def test_age(self, seconds, text):
        assert format_age(NOW - int(seconds * SECOND_NS), NOW) == text

    @pytest.mark.parametrize(
        ("seconds", "text"),
        [
            (0, r"just now \(CLOCK\)"),
            (86400, r"1 day ago \(CLOCK\)"),
            (90 * 86400, r"90 days ago \(\d{4}-\d\d-\d\d CLOCK\)"),
            (-90, "CLOCK"),
        ],
    )
    def test_moment_has_the_time_and_of_older_ones_the_date(self, seconds, text):
        shown = format_moment(NOW - seconds * SECOND_NS, NOW)
        assert re.fullmatch(text.replace("CLOCK", r"\d\d:\d\d:\d\d"), shown)


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (10_000_000, "10 MB"),
        (10 * 1024**2, "10 MiB"),
        (65536, "64 KiB"),
        (1_500_000, "1500 kB"),
        (512, "512 B"),
        (512_000, "500 KiB"),
        (1_048_577, "1.0 MiB"),
        (10**12, "1 TB"),
    ],
)
def test_limits_are_shown_in_the_units_they_were_given_in(size, shown):
    assert format_limit(size) == shown
