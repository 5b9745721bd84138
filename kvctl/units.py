"""Durations, sizes and times: parsing and formatting.

Durations are `timedelta`, sizes bytes as `int`, times nanoseconds since the epoch as `int` (`datetime` would truncate
them to microseconds, and a revision's time is sent back to the server).
"""

import re
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from kvctl.deferred import pattern
from kvctl.errors import UsageError

SECOND_NS = 1_000_000_000
MAX_INT64 = 2**63 - 1
"""The server counts nanoseconds and bytes in 64 bits."""
NEVER = timedelta.max
"""TTL of a key that nothing expires, not even the ttl of its bucket: `Nats-TTL: never` (ADR-43)."""

_UNITS_NS = {
    "ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6, "s": SECOND_NS, "m": 60 * SECOND_NS,
    "h": 3600 * SECOND_NS, "d": 86400 * SECOND_NS, "w": 604800 * SECOND_NS, "y": 31536000 * SECOND_NS,
}  # fmt: skip
_NUMBER = r"\d{1,18}(?:\.\d{1,18})?"
_PART = rf"({_NUMBER})({'|'.join(_UNITS_NS)})"
_DURATION_PART = pattern(_PART, re.ASCII)
DURATION_PATTERN = rf"(?:{_PART})+"
_DURATION = pattern(rf"{DURATION_PATTERN}\Z", re.ASCII)
_ZERO = pattern(r"[0.a-zµμ]+\Z")
_SIZES = {
    "": 1, "b": 1,
    "k": 1024, "kib": 1024, "kb": 1000,
    "m": 1024**2, "mib": 1024**2, "mb": 1000**2,
    "g": 1024**3, "gib": 1024**3, "gb": 1000**3,
    "t": 1024**4, "tib": 1024**4, "tb": 1000**4,
}  # fmt: skip
SIZES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
"""Units of sizes for people, each 1024 times the one before."""
_DECIMAL_SIZES = ("kB", "MB", "GB", "TB", "PB")
SIZE_PATTERN = r"(\d{1,19}(?:\.\d{1,18})?) ?([a-zA-Z]*)"
_SIZE = pattern(rf"{SIZE_PATTERN}\Z", re.ASCII)
_TIME = pattern(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?([Zz]|[+-]\d\d:\d\d)\Z", re.ASCII)
_DATE = pattern(r"\d{4}-\d\d-\d\d\Z", re.ASCII)


def parse_duration(text: str) -> timedelta:
    """Parse `90s`, `15m`, `1h30m`, `7d`; `0` alone needs no unit. Truncates to microseconds. Raises UsageError."""
    if text == "0":
        return timedelta()
    if not _DURATION.match(text):
        raise UsageError(f"`{text}` is not a duration", hint="Write it like `90s`, `15m`, `2h` or `7d`")
    nanoseconds = sum(_scaled(number, _UNITS_NS[unit])[0] for number, unit in _DURATION_PART.findall(text))
    if nanoseconds > MAX_INT64:
        raise UsageError(f"`{text}` is too long a duration", hint="The maximum is about 292 years")
    if nanoseconds < 1000 and not _ZERO.match(text):
        raise UsageError(f"`{text}` is too short a duration", hint="The minimum is one microsecond, `1us`")
    return duration_from_ns(nanoseconds)


def parse_ttl(text: str) -> timedelta:
    """Parse the ttl of a key: a duration, or `never`. Raises UsageError."""
    return NEVER if text.lower() == "never" else parse_duration(text)


def ttl_field(ttl: timedelta) -> int | float | str:
    """Convert the ttl of a key for JSON output: seconds, or `never`."""
    return "never" if ttl == NEVER else duration_seconds(ttl)


def format_duration(duration: timedelta) -> str:
    """Format a duration exactly as `parse_duration` reads it, in few units: `1h30m`, `5y`; negative with `-`."""
    micros = duration // timedelta(microseconds=1)
    if not micros:
        return "0s"
    parts = ["-"] if micros < 0 else []
    micros = abs(micros)
    years, rest = divmod(micros, _UNITS_NS["y"] // 1000)
    if not rest:
        return "".join([*parts, f"{years}y"])
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
    """Convert to nanoseconds, as in the server's JSON."""
    return (duration // timedelta(microseconds=1)) * 1000


def duration_from_ns(nanoseconds: int) -> timedelta:
    """Convert the server's nanoseconds, truncated to microseconds."""
    return timedelta(microseconds=nanoseconds // 1000)


def duration_seconds(duration: timedelta) -> int | float:
    """Convert to seconds for JSON output: an integer without a fraction."""
    seconds = duration.total_seconds()
    return int(seconds) if seconds == int(seconds) else seconds


def parse_size(text: str) -> int:
    """Parse a size in bytes: `512`, `64KiB`, `10MB` (1000-based), `1.5GiB`. Raises UsageError."""
    match = _SIZE.match(text)
    unit = _SIZES.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise UsageError(f"`{text}` is not a size", hint="Write it like `512`, `64KiB` or `10MB`")
    size, whole = _scaled(match[1], unit)
    if not whole and unit == 1:
        raise UsageError(f"`{text}` is not a whole number of bytes")
    if size > MAX_INT64:
        raise UsageError(f"`{text}` is too large a size", hint="The maximum is 8 EiB minus one byte")
    return size


NO_LIMIT = -1
"""A limit of size that servers take for none."""


def parse_limit(text: str) -> int:
    """Parse a limit of size; `none` is NO_LIMIT. Raises UsageError."""
    return NO_LIMIT if text == "none" else parse_size(text)


def format_limit(size: int) -> str:
    """Format a size that somebody chose: `10 MB`, `64 KiB`, and as `format_size` if no unit divides it."""
    exact = [
        (size // base**power, unit)
        for units, base in ((SIZES[1:], 1024), (_DECIMAL_SIZES, 1000))
        for power, unit in enumerate(units, 1)
        if size and size % base**power == 0
    ]
    if exact:
        number, unit = min(exact, key=lambda item: item[0])
        return f"{number} {unit}"
    return format_size(size)


def format_size(size: int) -> str:
    """Format a size for people: `1.5 KiB`."""
    if size < 1024:
        return f"{size} B"
    amount = float(size)
    for unit in SIZES[1:-1]:
        amount /= 1024
        if amount < 1023.95:  # larger amounts would round to 1024.0
            return f"{amount:.1f} {unit}"
    return f"{amount / 1024:.1f} PiB"


def parse_time(text: str, now_ns: int | None = None) -> int:
    """Parse an RFC 3339 time, or `-15m` (ago), to nanoseconds since the epoch. Raises UsageError."""
    if text.startswith("-"):
        return (time.time_ns() if now_ns is None else now_ns) - duration_ns(parse_duration(text[1:]))
    match = _TIME.match(text)
    try:
        if match:
            zone = "+00:00" if match[4] in "Zz" else match[4]
            return _seconds(f"{match[1]}T{match[2]}{zone}") * SECOND_NS + int((match[3] or "0").ljust(9, "0"))
    except (ValueError, OverflowError):
        pass
    raise UsageError(f"`{text}` is not a time", hint=time_hint(text))


def time_hint(text: str, others: str = "") -> str:
    """Return the hint for a text that is not a time: as it was probably meant, or examples after `others`."""
    if _DATE.match(text):
        return f"Add the time of day and the zone, as in `{text}T00:00:00Z`"
    with suppress(UsageError):
        parse_duration(text)
        return f"Write `-{text}` for {text} ago"
    return f"Write it like {others}`2026-01-31T12:00:00Z` or `-15m` (ago)"


class Ago(int):
    """Relative time: by the client's clock, until `on` resolves it by the server's."""

    ago: timedelta

    def on(self, now_ns: int) -> int:
        """Return the time in nanoseconds since the epoch, given the server's time."""
        return now_ns - duration_ns(self.ago)


def parse_instant(text: str) -> int:
    """Parse as `parse_time`, but keep `-15m` as an Ago. Raises UsageError."""
    time_ns = parse_time(text)
    if not text.startswith("-"):
        return time_ns
    found = Ago(time_ns)
    found.ago = parse_duration(text[1:])
    return found


def parse_utc(text: str | bytes) -> int:
    """Parse a server's time, RFC 3339 in UTC, to nanoseconds since the epoch: ten times faster than `parse_time`."""
    fraction = text[20:-1]
    return _utc_second(text[:19]) * SECOND_NS + (int(fraction) * 10 ** (9 - len(fraction)) if fraction else 0)


def _seconds(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp())


@lru_cache(1024)
def _utc_second(text: str | bytes) -> int:
    # Cached: the thousands of messages of one reading share their seconds.
    return _seconds(f"{text if isinstance(text, str) else text.decode()}+00:00")


def format_time(nanoseconds: int) -> str:
    """Format as RFC 3339 in UTC with all nine digits, for the years 1 to 9999."""
    seconds, rest = divmod(nanoseconds, SECOND_NS)
    return f"{_format_second(seconds)}.{rest:09d}Z"


def format_age(nanoseconds: int, now_ns: int | None = None) -> str:
    """Format an age for people: `3m ago`, `2 days ago`."""
    return format_elapsed(((time.time_ns() if now_ns is None else now_ns) - nanoseconds) / SECOND_NS)


def format_elapsed(seconds: float) -> str:
    """Format the seconds since something happened, in the largest unit: `3m ago`, `2 days ago`."""
    if seconds < 1:
        return "just now"
    for unit, size in ((" year", 31536000), (" day", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            count = int(seconds // size)
            return f"{count}{unit}{'s' if count > 1 and size >= 86400 else ''} ago"
    return f"{int(seconds)}s ago"


def format_moment(nanoseconds: int, now_ns: int | None = None) -> str:
    """Format a time for people as its age and the time here: `1 day ago (20:24:03)`, with the date if it is longer ago.

    A time in the future has no age.
    """
    now = time.time_ns() if now_ns is None else now_ns
    near = abs(now - nanoseconds) < 2 * _UNITS_NS["d"]
    shown = time.strftime("%H:%M:%S" if near else "%Y-%m-%d %H:%M:%S", time.localtime(nanoseconds // SECOND_NS))
    return shown if nanoseconds > now else f"{format_age(nanoseconds, now)} ({shown})"


def _scaled(number: str, unit: int) -> tuple[int, bool]:
    """Return `number` times `unit` without floating-point rounding, and if it is exact."""
    whole, _, fraction = number.partition(".")
    scaled, rest = divmod(int(whole + fraction) * unit, 10 ** len(fraction))
    return scaled, not rest


@lru_cache(maxsize=256)
def _format_second(seconds: int) -> str:
    # Neighbouring entries share their second, and formatting it is the larger part of the work.
    return (_EPOCH + timedelta(seconds=seconds)).isoformat()[:19]


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
