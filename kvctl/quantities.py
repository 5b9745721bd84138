"""Durations, sizes and times: text <-> value.

Durations are `timedelta`, sizes bytes as `int`, times nanoseconds since the epoch as `int` (`datetime` would cut them
to microseconds, and a revision's time is given back to the server).
"""

import re
import time
from datetime import UTC, datetime, timedelta

from kvctl.errors import UsageError

SECOND_NS = 1_000_000_000

_UNITS = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1,
    "m": 60,
    "h": 3600,
    "d": 86400,
    "w": 604800,
    "y": 31536000,
}
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h|d|w|y)")
_DURATION = re.compile(rf"(?:{_DURATION_PART.pattern})+\Z")
_SIZES = {
    "": 1, "b": 1,
    "k": 1024, "kib": 1024, "kb": 1000,
    "m": 1024**2, "mib": 1024**2, "mb": 1000**2,
    "g": 1024**3, "gib": 1024**3, "gb": 1000**3,
    "t": 1024**4, "tib": 1024**4, "tb": 1000**4,
}  # fmt: skip
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\Z")
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?([Zz]|[+-]\d\d:\d\d)\Z")


def parse_duration(text: str) -> timedelta:
    """`90s`, `15m`, `1h30m`, `7d`; `0` alone needs no unit. Raises UsageError."""
    if text == "0":
        return timedelta()
    if not _DURATION.match(text):
        raise UsageError(f"`{text}` is not a duration", hint="Write it like `90s`, `15m`, `2h` or `7d`")
    try:
        return timedelta(seconds=sum(float(number) * _UNITS[unit] for number, unit in _DURATION_PART.findall(text)))
    except OverflowError:
        raise UsageError(f"`{text}` is too long a duration", hint="The longest is about 292 years") from None


def format_duration(duration: timedelta) -> str:
    """The shortest exact text that `parse_duration` reads back: `1h30m`."""
    micros = round(duration / timedelta(microseconds=1))
    if not micros:
        return "0s"
    parts = []
    for unit, size in (
        ("d", 86400 * 10**6),
        ("h", 3600 * 10**6),
        ("m", 60 * 10**6),
        ("s", 10**6),
        ("ms", 10**3),
        ("us", 1),
    ):
        count, micros = divmod(micros, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)


def duration_ns(duration: timedelta) -> int:
    """Whole nanoseconds, as the server's JSON wants them."""
    return (duration // timedelta(microseconds=1)) * 1000


def duration_from_ns(nanoseconds: int) -> timedelta:
    """The server's nanoseconds; what is below a microsecond is cut."""
    return timedelta(microseconds=nanoseconds // 1000)


def duration_seconds(duration: timedelta) -> int | float:
    """Seconds as JSON output shows them: whole ones as an integer."""
    seconds = duration.total_seconds()
    return int(seconds) if seconds == int(seconds) else seconds


def parse_size(text: str) -> int:
    """Bytes of `512`, `64KiB`, `10MB` (1000-based), `1.5GiB`. Raises UsageError."""
    match = _SIZE.match(text)
    if not match or match[2].lower() not in _SIZES:
        raise UsageError(f"`{text}` is not a size", hint="Write it like `512`, `64KiB` or `10MB`")
    return int(float(match[1]) * _SIZES[match[2].lower()])


def format_size(size: int) -> str:
    """Bytes for people: `1.5 KiB`."""
    if size < 1024:
        return f"{size} B"
    amount = float(size)
    for unit in ("KiB", "MiB", "GiB"):
        amount /= 1024
        if amount < 1024:
            return f"{amount:.1f} {unit}"
    return f"{amount / 1024:.1f} TiB"


def parse_time(text: str, now_ns: int | None = None) -> int:
    """Nanoseconds since the epoch of an RFC 3339 time, or of `-15m` (ago). Raises UsageError."""
    if text.startswith("-"):
        return (time.time_ns() if now_ns is None else now_ns) - duration_ns(parse_duration(text[1:]))
    match = _TIME.match(text)
    try:
        if match:
            zone = "+00:00" if match[4] in "Zz" else match[4]
            whole = datetime.fromisoformat(f"{match[1]}T{match[2]}{zone}")
            return int(whole.timestamp()) * SECOND_NS + int((match[3] or "0").ljust(9, "0"))
    except (ValueError, OverflowError):
        pass
    raise UsageError(f"`{text}` is not a time", hint="Write it like `2026-01-31T12:00:00Z` or `-15m` (ago)")


def format_time(nanoseconds: int) -> str:
    """RFC 3339 in UTC with all nine digits."""
    seconds, rest = divmod(nanoseconds, SECOND_NS)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"


def format_age(nanoseconds: int, now_ns: int | None = None) -> str:
    """How long ago, for people: `3m ago`."""
    seconds = ((time.time_ns() if now_ns is None else now_ns) - nanoseconds) / SECOND_NS
    if seconds < 1:
        return "just now"
    for unit, size in (("y", 31536000), ("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{int(seconds // size)}{unit} ago"
    return f"{int(seconds)}s ago"
