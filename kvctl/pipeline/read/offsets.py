"""Where a stream read stands, what of the rest a bucket still holds, and how it is cut into partitions. [pure]

An offset is a revision of one life of the bucket (its incarnation): everything up to it has been read. What is missing
above it is no loss where newer revisions of the same keys took its place, as a bucket's history makes them, and every
key's newest state is still to come. It is a loss where that cannot be: `check` tells them apart, as far as the
bucket's configuration and its first and last revision say.
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
"""Revisions below which a partition is not worth a task."""
PARTITIONS = 4
"""Partitions of a batch that is large enough, unless told otherwise: the same on every machine."""

_ANEW = "Start anew: with another checkpoint, and another place for the output or nothing in it"


@dataclass(frozen=True, slots=True)
class Offset:
    """All revisions up to this one are read."""

    revision: int
    incarnation: str
    """When the bucket's stream was created, as the server says it."""
    seen_ns: int = 0
    """A time at which nothing that is beyond it had been written; 0 where none is known."""
    held: int = 0
    """The lowest revision beyond it that was there when it was made; 0 where that is not known."""

    def document(self) -> dict[str, Any]:
        """The JSON form, which Spark keeps in the checkpoint."""
        known: dict[str, Any] = {"seen": format_time(self.seen_ns)} if self.seen_ns else {}
        if self.held:
            known["held"] = self.held
        return {"version": VERSION, "revision": self.revision, "incarnation": self.incarnation, **known}

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Offset:
        """The offset of a JSON form. Raises ConflictError for one that this kvctl does not know."""
        if (version := document.get("version")) != VERSION:
            raise ConflictError(
                f"The checkpoint's offsets have version {version}, this kvctl knows {VERSION}", hint="Use a newer kvctl"
            )
        seen, held = document.get("seen"), int(document.get("held", 0))
        return cls(int(document["revision"]), str(document["incarnation"]), parse_utc(seen) if seen else 0, held)

    @property
    def next(self) -> int:
        """The lowest revision beyond it that may have been there."""
        return max(self.revision + 1, self.held)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What a bucket's stream says of itself at one moment."""

    bucket: str
    incarnation: str
    first: int
    """The lowest revision held; one more than the last where nothing is."""
    last: int
    gaps: bool
    """Whether revisions between the two are gone."""
    at_ns: int
    first_ns: int = 0
    """When the lowest revision held was written."""
    expiry_ns: int = 0
    """For how long at least an entry, or the marker that says that it expired, is held; 0 for ever."""
    evicts: bool = False
    """Whether a full bucket drops its oldest entries, newest of their keys or not."""

    @classmethod
    def of(cls, bucket: str, info: Mapping[str, Any]) -> Standing:
        """From the stream's info."""
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
        """Everything there is, read."""
        return Offset(self.last, self.incarnation, self.at_ns)


def check_same(offset: Offset, incarnation: str, bucket: str) -> None:
    """Raises StreamReplaced where the offset is of another life of the bucket."""
    if offset.incarnation != incarnation:
        raise StreamReplaced(
            f"Bucket `{bucket}` was created anew at {incarnation}: revision {offset.revision} of the checkpoint is of "
            f"the one created at {offset.incarnation}",
            hint=_ANEW,
        )


def check(offset: Offset, standing: Standing, *, loss: bool = True) -> None:
    """Raises StreamReplaced for a bucket that is not the one read so far; with `loss` HistoryLost where it lost some.

    No loss: revisions that newer ones of their keys replaced, and what is below where the reading began.
    """
    check_same(offset, standing.incarnation, standing.bucket)
    if standing.last < offset.revision:
        raise StreamReplaced(
            f"Bucket `{standing.bucket}` ends at revision {standing.last}, and {offset.revision} was read already: "
            "it was restored from an older copy, or lost what it held",
            hint=_ANEW,
        )
    cause = _cause(offset, standing) if loss and standing.first > offset.next else None
    if cause:
        raise HistoryLost(
            f"Bucket `{standing.bucket}` no longer holds revisions {offset.next} to {standing.first - 1}: "
            f"{cause} before they were read",
            hint="The option `failOnDataLoss=false` goes on with what is left",
        )


def _cause(offset: Offset, standing: Standing) -> str | None:
    """How revisions right above the offset went that no newer ones replaced, or may have; None for history alone."""
    from_beginning = not offset.revision and not offset.seen_ns
    if from_beginning:
        return None
    if standing.first > standing.last:
        return "they were purged or expired"
    if standing.evicts:
        return "they may have been dropped from the full bucket"
    if standing.expiry_ns and offset.seen_ns and standing.at_ns - offset.seen_ns > standing.expiry_ns:
        return "they may have expired"
    return None


def check_start(revision: int, standing: Standing) -> None:
    """Raises UsageError for a starting revision that the bucket has not reached."""
    if revision > standing.last + 1:
        raise UsageError(
            f"`startingRevision` {revision} is above the last revision of bucket `{standing.bucket}`, {standing.last}",
            hint="`latest` starts with what is written from now on",
        )


def ranges(after: int, last: int, partitions: int) -> list[tuple[int, int]]:
    """The revisions above `after` up to `last` as ranges (first, last), at most so many, in order, about as long."""
    length = last - after
    count = max(1, min(partitions, length // SMALLEST)) if length > 0 else 0
    edges = [after + length * number // count for number in range(count + 1)] if count else []
    return [(low + 1, high) for low, high in pairwise(edges)]
