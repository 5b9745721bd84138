"""Limits of size: whether a replica has room for all that its origins may hold, as stored in the replica. [pure]

Sizes are those of nats-server (`fileStoreMsgSize`, `memStoreMsgSize`, `genSourceHeader`); an oracle compares the
answers with what arrives.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from math import inf
from typing import NamedTuple

from kvctl.jetstream.stream_info import Source, SourceConfig, StreamConfig, StreamInfo
from kvctl.kv.names import STREAM_PREFIX, SUBJECT_PREFIX
from kvctl.topology.model.subjects import parse
from kvctl.units import format_size

_OVERHEAD = {"file": 30, "memory": 16}
"""Bytes of a message without its subject, headers and data."""
_HEADER_SIZE_FIELD = 4
"""Bytes that a file store adds to a message with headers."""
_HEADER_BLOCK = len("NATS/1.0\r\n\r\n")
_SEQUENCE_DIGITS = 20
_ID = " 12345678"
"""Identity of the source, and hash of the API prefix of another account, as lengths."""
_LONG_SUBJECT = 1024
"""Bytes of the longest subject for which a limit of values has to have room."""
_SHORTEST_SUBJECT = len("$KV.B.k")
_FUNCTION = re.compile(r"\{\{.*?\}\}")


class Shortfall(NamedTuple):
    """Evidence that a replica lacks room."""

    evidence: str
    certain: bool
    """True if any contents that fill the origins are too large; False if only some are, as many small entries."""


class _Span(NamedTuple):
    """The least and the most of a number that depends on the contents."""

    least: float
    most: float

    def __add__(self, other: _Span) -> _Span:  # type: ignore[override]
        return _Span(self.least + other.least, self.most + other.most)


def shortfalls(config: StreamConfig, origins: Sequence[StreamConfig | None]) -> Iterator[Shortfall]:
    """Yield the limits that a replica reaches before its origins do; origins are None where not readable."""
    sources = [config["mirror"]] if config.get("mirror") else config.get("sources") or []
    pairs = [(source, origin) for source, origin in zip(sources, origins, strict=False) if origin is not None]
    for source, origin in pairs:
        yield from _of_values(config, source, origin)
    own = _Span(0, inf if config.get("subjects") else 0)
    full = _when_full(config)
    if 0 < (limit := config.get("max_bytes", -1)) and pairs:
        need = sum((_bytes(config, source, origin) for source, origin in pairs), own)
        each = "" if config.get("mirror") else ", with a header for each entry"
        if limit < need.least:
            held = sum(_limit(origin, "max_bytes") for _, origin in pairs)
            size = "no limit" if held == inf else f"{format_size(int(held))}{each}"
            if held < inf == need.least:
                size = "they delete their oldest entries to make room, and it keeps those"
            text = f"max-bytes {format_size(limit)} is below what the origins may hold ({size})"
            yield Shortfall(f"{text}: {full}", certain=True)
        elif limit < need.most:
            size = "more" if need.most == inf else f"up to {format_size(int(need.most))}"
            text = f"max-bytes {format_size(limit)} may be too small: entries of the origins can take {size} here"
            yield Shortfall(f"{text}{each}: {full}", certain=False)
    if 0 < (limit := config.get("max_msgs", -1)) and pairs:
        count = sum((_count(config, origin) for _, origin in pairs), own)
        if limit < count.most:
            text = f"max_msgs {limit} is below the number of entries that the origins may hold"
            yield Shortfall(f"{text}: {full}", certain=limit < count.least)


def stopped_by(info: StreamInfo, source: SourceConfig, subject: str, header: int, payload: int) -> str:
    """Return the limit that keeps a replica from storing the next entry of an origin; empty if none does.

    `header` and `payload` are the sizes of the entry in the origin.
    """
    config, state = info["config"], info["state"]
    size = header + payload
    if not config.get("mirror"):
        size += (0 if header else _HEADER_BLOCK) + int(_field(source).least) + len(subject)
    if 0 < (limit := config.get("max_msg_size", -1)) < size:
        return f"the next entry takes at least {size} bytes here, above max-value-size {format_size(limit)}"
    stored = size + len(subject) + _OVERHEAD[str(config.get("storage", "file"))]
    if 0 < (limit := config.get("max_bytes", -1)) <= state["bytes"] + stored:
        return f"it is full, with {format_size(state['bytes'])} of max-bytes {format_size(limit)}"
    full = 0 < config.get("max_msgs", -1) <= state["messages"]
    return f"it is full, with max_msgs {config['max_msgs']}" if full else ""


def _of_values(config: StreamConfig, source: SourceConfig, origin: StreamConfig) -> Iterator[Shortfall]:
    size, of = config.get("max_msg_size", -1), _name(origin)
    theirs = min(_limit(origin, "max_msg_size"), max(_limit(origin, "max_bytes") - _smallest(origin), 0))
    if size <= 0:
        return
    stops = "the first larger value would silently stop replication"
    shown = "no limit" if theirs == inf else format_size(int(theirs))
    need = _Span(theirs, theirs)
    if not config.get("mirror"):
        field = _field(source)
        block = 0 if origin.get("sources") else _HEADER_BLOCK + field.least
        need = _Span(theirs + block, theirs + _HEADER_BLOCK + field.most + _LONG_SUBJECT)
        shown += "" if theirs == inf else ", plus a header for each entry"
    if theirs == inf:
        need = _unlimited(origin)
    if size < need.least:
        yield Shortfall(f"max-value-size {format_size(size)} is below `{of}`'s ({shown}): {stops}", certain=True)
    elif theirs == inf:
        text = f"max-value-size {format_size(size)} may be too small: `{of}`, itself a replica, has no limit"
        yield Shortfall(f"{text}: {stops}", certain=False)
    elif size < need.most:
        room = int(size - need.most + _LONG_SUBJECT) - len(f"{SUBJECT_PREFIX}{of}.")
        keys = f"keys of more than {room} characters" if room > 0 else "almost any key"
        text = f"max-value-size {format_size(size)} has no room for the largest values of `{of}` ({shown}) with {keys}"
        yield Shortfall(f"{text}: {stops}", certain=False)


def _bytes(config: StreamConfig, source: SourceConfig, origin: StreamConfig) -> _Span:
    """Return the size of an origin that is full, as stored in the replica."""
    held = _limit(origin, "max_bytes")
    if held == inf or _sheds(config, origin):
        return _unlimited(origin)
    added = _added(config, source, origin)
    most = held // _smallest(origin)
    count = _Span(min(1, most), most)
    sizes = [held + number * more for number in count for more in added]
    return _Span(min(sizes), max(sizes) * _turnover(config, origin))


def _count(config: StreamConfig, origin: StreamConfig) -> _Span:
    """Return the number of entries of an origin that is full."""
    if _sheds(config, origin):
        return _unlimited(origin)
    number, held = _limit(origin, "max_msgs"), _limit(origin, "max_bytes")
    most = min(number, held // _smallest(origin) if held < inf else inf)
    if number == held == inf:
        return _unlimited(origin)
    return _Span(number if held == inf else min(1, most), most * _turnover(config, origin))


def _unlimited(origin: StreamConfig) -> _Span:
    """Return the size of an origin without a limit; that of a replica is bounded by the limits of its own origins."""
    return _Span(0 if origin.get("mirror") or origin.get("sources") else inf, inf)


def _turnover(config: StreamConfig, origin: StreamConfig) -> float:
    """Return how many times the contents of an origin a replica may hold, which deletes later."""
    mine, theirs = _limit(config, "max_msgs_per_subject"), _limit(origin, "max_msgs_per_subject")
    revisions = max(mine / theirs, 1) if theirs < inf else 1
    # In an aggregate the age of an entry counts from its arrival.
    late = not config.get("mirror") and bool(origin.get("max_age") or origin.get("allow_msg_ttl"))
    return revisions * (2 if late else 1)


def _sheds(config: StreamConfig, origin: StreamConfig) -> bool:
    """Return whether an origin makes room by deleting its oldest entries, but the replica refuses new ones."""
    return bool(origin.get("discard", "old") == "old" and config.get("discard", "old") == "new")


def _added(config: StreamConfig, source: SourceConfig, origin: StreamConfig) -> _Span:
    """Return the bytes that an entry takes in the replica in addition to those in its origin."""
    mine, theirs = (str(one.get("storage", "file")) for one in (config, origin))
    base = _OVERHEAD[mine] - _OVERHEAD[theirs]
    # Only file stores keep the size of the headers.
    headed = (mine == "file") - (theirs == "file")
    if config.get("mirror"):
        sizes = (base, base + headed * _HEADER_SIZE_FIELD)
        return _Span(min(sizes), max(sizes))
    field = _field(source)
    rules = [rule for rule in parse(source.get("subject_transforms") or ()) if rule.dest]
    shorter = min((len(_FUNCTION.sub("", rule.dest)) - len(rule.src) for rule in rules), default=0)
    longer = max((len(rule.dest) - len(rule.src) for rule in rules), default=0)
    shortest = _smallest(origin) - _OVERHEAD[theirs]
    least = 0 if origin.get("sources") else _HEADER_BLOCK + field.least
    return _Span(
        base + min(shorter, 0) + least - (0 if mine == "file" else _HEADER_SIZE_FIELD),
        base + max(longer, 0) + _HEADER_BLOCK + field.most + shortest + _HEADER_SIZE_FIELD,
    )


def _field(source: SourceConfig) -> _Span:
    """Return the length of the header field of an entry of this source, without the subject at its end."""
    rules = parse(source.get("subject_transforms") or ())
    filters = "\f".join(rule.src for rule in rules) or source.get("filter_subject") or ">"
    places = "\f".join(rule.dest or ">" for rule in rules) or ">"
    hashed = _ID if Source.parse(source).api else ""
    text = f"Nats-Stream-Source: {source['name']}{hashed}  {filters} {places}\r\n"
    return _Span(len(text) + 1, len(text) + _SEQUENCE_DIGITS + len(f" {_ID}"))  # servers before 2.15 write less


def _smallest(origin: StreamConfig) -> int:
    """Return the size of the smallest entry that a stream stores."""
    name = str(origin["name"])
    subject = len(f"{SUBJECT_PREFIX}{_name(origin)}.k") if name.startswith(STREAM_PREFIX) else _SHORTEST_SUBJECT
    return _OVERHEAD[str(origin.get("storage", "file"))] + subject


def _limit(config: StreamConfig, field: str) -> float:
    limit = config.get(field) or -1
    return float(limit) if limit > 0 else inf


def _when_full(config: StreamConfig) -> str:
    stops = config.get("discard", "old") == "new"
    return "when full, replication silently stops" if stops else "when full, the oldest entries are silently deleted"


def _name(stream: StreamConfig) -> str:
    return str(stream["name"]).removeprefix(STREAM_PREFIX)
