"""Kinds of streams, determined from their configuration alone (ADR-8). [pure]"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from kvctl.deferred import pattern
from kvctl.errors import HazardRefused
from kvctl.jetstream.stream_info import Source
from kvctl.kv.names import STREAM_PREFIX, SUBJECT_PREFIX
from kvctl.phrases import with_article

if TYPE_CHECKING:
    from kvctl.jetstream.stream_info import StreamConfig


OWN_METADATA = "kvctl."
"""Prefix of kvctl's own metadata on streams."""
UNFINISHED = "kvctl.unfinished"
"""Metadata of a stream that is being restored or copied into; the value names the attempt."""
KIND = "kvctl.kind"
"""Metadata of a stream that belongs to a table or a repository; the value is `table` or `repository`.

Its name is `KVT_NAME` or similar, with one letter before the `_`; its auxiliary streams have more letters.
"""
TOPOLOGY = "kvctl.topology"
"""Metadata of a stream that a topology file created or adopted; the value is the topology's name."""
LEAVING = "kvctl.leaving"
"""Metadata of an aggregate from which keys are being removed; the value is their sources, as JSON."""
FIRST_ENTRY = 1
"""`opt_start_seq` of every source of an aggregate: see `started`."""
SERVER_METADATA = "_nats."
"""Prefix of the server's own metadata."""

_LONGEST_CHAIN = 8
_FOREIGN_NAME = pattern(r"KV[A-Z]?_(.+)")
FOREIGN_KIND = "foreign-kind"
COMMANDS = {"table": "kvctl table", "repository": "kvctl repo"}
"""Owner of the streams -> its commands."""
NAMES = pattern(r"KV[A-Z]+_")
"""Beginning of the names of their streams."""
WHOLE = "KVR_"
"""Beginning of the names of repository streams: each is complete by itself, and so is a mirror of it."""


class Kind(StrEnum):
    """Kind of a stream for a key-value user."""

    BUCKET = "bucket"
    AGGREGATE = "aggregate"
    MIRROR = "mirror"
    STREAM = "stream"
    """Named like a bucket, but not one."""
    INCOMPLETE = "incomplete"
    """Leftovers of an interrupted restore or copy."""
    TABLE = "table"
    REPOSITORY = "repository"
    UNKNOWN = "unknown"
    """Only its name is known, because its servers do not answer."""


_NAMED = {Kind.BUCKET, Kind.AGGREGATE, Kind.MIRROR, Kind.TABLE, Kind.REPOSITORY}


def described(kind: Kind | None) -> str:
    """Return the kind with its article, for messages: `a bucket`, `an aggregate`, otherwise `a stream`."""
    return with_article(kind if kind in _NAMED else "stream")


def kind_of(stream: StreamConfig, others: Mapping[str, StreamConfig] | None = None) -> Kind | None:
    """Return the stream's kind; None for a stream unrelated to buckets.

    `others` are the streams in view by name, used to follow a mirror of a mirror.
    """
    name: str = stream["name"]
    named = name.startswith(STREAM_PREFIX)
    metadata = stream.get("metadata") or {}
    if UNFINISHED in metadata:
        return Kind.INCOMPLETE
    if metadata.get(KIND) in _FOREIGN:
        return Kind(metadata[KIND]) if _FOREIGN_NAME.match(name) else None
    if stream.get("mirror"):
        return Kind.MIRROR if _leads_to_bucket(stream, others or {}) else (Kind.STREAM if named else None)
    return _kind_of_named(stream) if named else None


_FOREIGN = (Kind.TABLE, Kind.REPOSITORY)


def bucket_name(stream: StreamConfig, kind: Kind | None) -> str:
    """Return the name that users type: without `KV_` for a bucket, otherwise the stream's name."""
    name: str = stream["name"]
    if kind in _FOREIGN and (found := _FOREIGN_NAME.match(name)):
        return found[1]
    return name if kind in (None, Kind.STREAM) else name.removeprefix(STREAM_PREFIX)


def started(stream: StreamConfig) -> StreamConfig:
    """Return the configuration with each source starting at its origin's first entry, unless it has another start.

    By default, servers let a source that has replicated nothing yet start at the time of the aggregate's last entry as
    soon as the aggregate's first entry was overwritten by another source or a writer: older entries of the origin are
    silently lost. The field has no effect on a source that has replicated something.
    """
    sources = stream.get("sources") or []
    if all(begins_somewhere(source) for source in sources):
        return stream
    return {**stream, "sources": [_started(source) for source in sources]}


def begins_somewhere(source: Mapping[str, Any]) -> bool:
    """Return True if a source names the entry or the time of the origin to start at."""
    return bool(source.get("opt_start_seq") or source.get("opt_start_time"))


def _started(source: dict[str, Any]) -> dict[str, Any]:
    return source if begins_somewhere(source) else {**source, "opt_start_seq": FIRST_ENTRY}


def own_metadata(stream: StreamConfig) -> dict[str, str]:
    """Return the metadata set by users, without the server's and kvctl's."""
    metadata = stream.get("metadata") or {}
    return {name: value for name, value in metadata.items() if not reserved(name)}


def without_server_metadata(stream: StreamConfig) -> StreamConfig:
    """Return the configuration without the metadata that servers add."""
    metadata = stream.get("metadata") or {}
    return {
        **stream,
        "metadata": {name: text for name, text in metadata.items() if not name.startswith(SERVER_METADATA)},
    }


def reserved(name: str) -> bool:
    """Return True if metadata of this name is reserved."""
    return name.startswith((SERVER_METADATA, OWN_METADATA))


def _kind_of_named(stream: StreamConfig) -> Kind:
    subjects = stream.get("subjects") or []
    keys = f"{SUBJECT_PREFIX}{stream['name'].removeprefix(STREAM_PREFIX)}.>"
    if stream.get("max_msgs_per_subject", 0) < 1:
        return Kind.STREAM
    if stream.get("sources"):
        return Kind.AGGREGATE if not subjects or keys in subjects else Kind.STREAM
    return Kind.BUCKET if keys in subjects else Kind.STREAM


def _leads_to_bucket(stream: StreamConfig, others: Mapping[str, StreamConfig]) -> bool:
    for _ in range(_LONGEST_CHAIN):
        origin = stream["mirror"]["name"]
        if origin.startswith(STREAM_PREFIX) or _FOREIGN_NAME.match(origin):
            return True
        following = None if Source.parse(stream["mirror"]).is_external else others.get(origin)
        if following is None or not following.get("mirror"):
            return False
        stream = following
    return False


def owner(stream: StreamConfig) -> str | None:
    """Return the owner of the stream: `table` or `repository`; None for a bucket's."""
    return (stream.get("metadata") or {}).get(KIND) or None


def evidence(stream: StreamConfig) -> str | None:
    """Return the reason why bucket commands cannot be used on the stream; None for a bucket's."""
    of = owner(stream)
    return f"`{stream['name']}` belongs to a {of}, which would break" if of else None


def remedy(stream: StreamConfig) -> str:
    """Return a hint with the owner's commands."""
    command = COMMANDS.get(owner(stream) or "")
    return f"Use `{command}` instead" if command else ""


def namesake(streams: Iterable[str], name: str) -> str | None:
    """Return the stream that may be a table or a repository of this name."""
    return next((stream for stream in streams if re.fullmatch(rf"KV[A-Z]_{re.escape(name)}", stream)), None)


def refuse(stream: StreamConfig, forced: Collection[str] = (), *, forcible: bool = True) -> None:
    """Raise HazardRefused for the stream of a table or repository, unless `foreign-kind` is forced."""
    text = evidence(stream)
    if text is None or FOREIGN_KIND in forced:
        return
    way = f"Use `--force {FOREIGN_KIND}` to proceed anyway" if forcible else ""
    raise HazardRefused(FOREIGN_KIND, text, hint=". ".join(filter(None, (remedy(stream), way))) or None)
