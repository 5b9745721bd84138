"""Offsets of a stream read, detection of lost revisions, and partitioning of batches. [pure]

An offset is a revision of one stream instance of the bucket: everything up to it has been read. Revisions missing above
it are not lost if newer revisions of the same keys replaced them, as a bucket's history does, because every key's
newest state is still to come. Otherwise they are lost: `check` decides, as far as the bucket's configuration and its
first and last revision allow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from kvctl.errors import ConflictError, HistoryLost, StreamReplaced, UsageError
from kvctl.units import format_time, parse_utc

VERSION = 1
SMALLEST = 10_000
"""Minimum number of revisions worth a task."""
PARTITIONS = 4
"""Default number of partitions of a large batch: the same on every machine."""

_ANEW = "Start over with another checkpoint and a new or empty output"


@dataclass(frozen=True, slots=True)
class Offset:
    """All revisions up to this one are read."""

    revision: int
    incarnation: str
    """Creation time of the bucket's stream, as reported by the server."""
    seen_ns: int = 0
    """Time at which nothing beyond it had been written; 0 if not known."""
    held: int = 0
    """Lowest revision beyond it that existed when it was created; 0 if not known."""

    def document(self) -> dict[str, Any]:
        """Return the JSON form, which Spark keeps in the checkpoint."""
        known: dict[str, Any] = {"seen": format_time(self.seen_ns)} if self.seen_ns else {}
        if self.held:
            known["held"] = self.held
        return {"version": VERSION, "revision": self.revision, "incarnation": self.incarnation, **known}

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Offset:
        """Read the offset of a JSON form. Raises ConflictError for an unsupported version."""
        if (version := document.get("version")) != VERSION:
            raise ConflictError(
                f"The checkpoint's offsets have version {version}, but this kvctl supports {VERSION}",
                hint="Upgrade kvctl",
            )
        seen, held = document.get("seen"), int(document.get("held", 0))
        return cls(int(document["revision"]), str(document["incarnation"]), parse_utc(seen) if seen else 0, held)

    @property
    def next(self) -> int:
        """Return the lowest revision beyond it that may have existed."""
        return max(self.revision + 1, self.held)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamExtent:
    """State of a bucket's stream, from its info."""

    bucket: str
    incarnation: str
    first: int
    """Lowest existing revision; one more than the last if there is none."""
    last: int
    gaps: bool
    """True if revisions between the two are missing."""
    at_ns: int
    first_ns: int = 0
    """Time at which the lowest existing revision was written."""
    expiry_ns: int = 0
    """Minimum time that an entry, or the marker of its expiry, is kept; 0 if it does not expire."""
    evicts: bool = False
    """True if a full bucket drops its oldest entries, even the newest of their keys."""

    @classmethod
    def of(cls, bucket: str, info: Mapping[str, Any]) -> StreamExtent:
        """Create it from the stream's info."""
        state, config = info["state"], info["config"]
        last = int(state["last_seq"])
        bounded = any((config.get(limit) or 0) > 0 for limit in ("max_bytes", "max_msgs"))
        expiry = int(config.get("max_age") or 0)
        return cls(
            bucket=bucket,
            incarnation=str(info["created"]),
            first=int(state["first_seq"]) if state["messages"] else last + 1,
            last=last,
            gaps=bool(state.get("num_deleted")),
            at_ns=parse_utc(info["ts"]),
            first_ns=parse_utc(state["first_ts"]) if state["messages"] else 0,
            expiry_ns=expiry + int(config.get("subject_delete_marker_ttl") or 0) if expiry else 0,
            evicts=bounded and config.get("discard", "old") == "old",
        )

    @property
    def end(self) -> Offset:
        """Return the offset at which everything is read."""
        return Offset(self.last, self.incarnation, self.at_ns)


def document_of(offsets: Mapping[str, Offset], bucket: str) -> dict[str, Any]:
    """Return the JSON form of offsets by bucket, or, for a query of this `bucket` alone, of its offset."""
    if bucket:
        return offsets[bucket].document()
    return {"version": VERSION, "buckets": {name: offset.document() for name, offset in sorted(offsets.items())}}


def offsets_of(document: Mapping[str, Any], bucket: str) -> dict[str, Offset]:
    """Read the offsets of a JSON form. Raises ConflictError for those of a query of another kind."""
    if bool(bucket) is ("buckets" in document):
        kinds = ("several buckets", "one bucket")
        raise ConflictError(
            f"The checkpoint belongs to a query of {kinds[not bucket]}, and this one is of {kinds[bool(bucket)]}",
            hint="Use the same options, or another checkpoint",
        )
    if bucket:
        return {bucket: Offset.parse(document)}
    return {name: Offset.parse(offset) for name, offset in document["buckets"].items()}


def check_same(offset: Offset, incarnation: str, bucket: str) -> None:
    """Raises StreamReplaced if the offset belongs to another stream instance of the bucket."""
    if offset.incarnation != incarnation:
        raise StreamReplaced(
            f"Bucket `{bucket}` was recreated at {incarnation}: revision {offset.revision} of the checkpoint "
            f"belongs to the one created at {offset.incarnation}",
            hint=_ANEW,
        )


def check(offset: Offset, extent: StreamExtent, *, loss: bool = True) -> None:
    """Raises StreamReplaced for a bucket other than the one read so far; with `loss` HistoryLost if it lost revisions.

    Revisions replaced by newer ones of their keys are not lost, nor are those below the start of the read.
    """
    check_same(offset, extent.incarnation, extent.bucket)
    if extent.last < offset.revision:
        raise StreamReplaced(
            f"Bucket `{extent.bucket}` ends at revision {extent.last}, but {offset.revision} was already read: "
            "it was restored from an older copy, or lost data",
            hint=_ANEW,
        )
    cause = _cause(offset, extent) if loss and extent.first > offset.next else None
    if cause:
        raise HistoryLost(
            f"Bucket `{extent.bucket}` no longer holds revisions {offset.next} to {extent.first - 1}: "
            f"{cause} before they were read",
            hint="Set option `failOnDataLoss=false` to continue with the remaining entries",
        )


def _cause(offset: Offset, extent: StreamExtent) -> str | None:
    """Return why revisions right above the offset are, or may be, missing without newer ones; None if only replaced."""
    from_beginning = not offset.revision and not offset.seen_ns
    if from_beginning:
        return None
    if extent.first > extent.last:
        return "they were purged or expired"
    if extent.evicts:
        return "they may have been dropped from the full bucket"
    if extent.expiry_ns and offset.seen_ns and extent.at_ns - offset.seen_ns > extent.expiry_ns:
        return "they may have expired"
    return None


def limits(available: Mapping[str, int], most: int) -> dict[str, int]:
    """Return how many of the available revisions of each bucket fit into a batch: in proportion, and at least one."""
    total = sum(available.values())
    return {name: max(number * most // total, 1) if total else 0 for name, number in available.items()}


def check_start(revision: int, extent: StreamExtent) -> None:
    """Raises UsageError for a starting revision that the bucket has not reached."""
    if revision > extent.last + 1:
        raise UsageError(
            f"`startingRevision` {revision} is above the last revision of bucket `{extent.bucket}`, {extent.last}",
            hint="`latest` starts with new writes",
        )


@dataclass(frozen=True, slots=True)
class Revisions:
    """Revisions from `first` to `last`, both included."""

    first: int
    last: int
    expected: int | None = None
    """Number of messages when the read was planned; None if not known."""


def even(first: int, last: int, parts: int) -> list[Revisions]:
    """Return at most `parts` ranges of about the same number of revisions, whatever they contain."""
    starts = starts_of(first, last, parts)
    return [Revisions(start, end - 1) for start, end in pairwise([*starts, last + 1])]


def starts_of(first: int, last: int, parts: int) -> list[int]:
    """Return the first revisions of at most `parts` ranges of similar length."""
    count = min(parts, last - first + 1)
    return [first + (last - first + 1) * number // count for number in range(count)]


def ranges(after: int, last: int, partitions: int, least: int = 1) -> list[Revisions]:
    """Split the revisions above `after` up to `last` into at most `partitions` ranges, but at least `least` ones."""
    return even(after + 1, last, max(least, min(partitions, (last - after) // SMALLEST)))
