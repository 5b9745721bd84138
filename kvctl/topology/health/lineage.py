"""Comparison of a mirror with its current origin, or with one deleted and recreated since. [pure]"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvctl.jetstream.stream_info import StreamInfo
from kvctl.topology.hazards.hazards import RECREATED_ORIGIN, Hazard, name_of
from kvctl.topology.survey.graph import live_part
from kvctl.units import format_time, parse_time


@dataclass(frozen=True, slots=True)
class Lineage:
    """Result of comparing a replica's entries with the current stream instance of its origin."""

    same: bool | None
    """False: it holds entries of an earlier instance. None: undecided; an audit decides."""
    evidence: str = ""

    def hazards(self) -> list[Hazard]:
        """Return the hazard of a stale mirror, if it is one."""
        return [Hazard(RECREATED_ORIGIN, self.evidence, REMEDY)] if self.same is False else []


_SKEW = 10**9
"""Nanoseconds by which the clocks of an aggregate's and its origin's servers may differ."""

REMEDY = "Run `kvctl topology audit --repair` to recreate stale mirrors"


def lineage(replica: StreamInfo, origin: StreamInfo, source: dict[str, Any] | None = None) -> Lineage:
    """Compare two infos, the origin's requested after the replica's; `source` is the one of an aggregate."""
    return (
        _of_mirror(replica, origin)
        if source is None or replica["config"].get("mirror")
        else _of_source(replica, origin, source)
    )


def _of_mirror(mirror: StreamInfo, origin: StreamInfo) -> Lineage:
    """Compare a mirror, which keeps the origin's sequences and times."""
    mine, theirs = mirror["state"], origin["state"]
    name, of = name_of(mirror["config"]), name_of(origin["config"])
    made, created = parse_time(mirror["created"]), parse_time(origin["created"])
    if mine["last_seq"] > theirs["last_seq"]:
        text = f"`{name}` is at revision {mine['last_seq']}, but `{of}` only at {theirs['last_seq']}"
        return Lineage(False, f"{text}: it was recreated or restored, and `{name}` serves the old values")
    if created <= made or not mine["last_seq"]:
        return Lineage(True)
    if mine["messages"] and parse_time(mine["first_ts"]) < created:
        return _older(name, of, mirror, origin, created)
    if mine["first_seq"] > theirs["first_seq"] and theirs["messages"] and not _filtered(mirror):
        text = f"`{name}` begins at revision {mine['first_seq']}, but `{of}` at {theirs['first_seq']}"
        return Lineage(False, f"{text}: it was recreated after the mirror, which lacks its first entries")
    return Lineage(True)


def _of_source(aggregate: StreamInfo, origin: StreamInfo, source: dict[str, Any]) -> Lineage:
    """Compare one source of an aggregate, which detects a recreated origin by itself but keeps the old one's keys."""
    name, of, theirs = name_of(aggregate["config"]), name_of(origin["config"]), origin["state"]
    come = live_part(source, aggregate.get("sources") or []).get("seq", 0)
    if come > theirs["last_seq"]:
        text = f"`{name}` is at revision {come}, but `{of}` only at {theirs['last_seq']}"
        return Lineage(False, f"{text}: it was recreated or restored, and `{name}` keeps the old values")
    config, state, created = aggregate["config"], aggregate["state"], parse_time(origin["created"])
    alone = len(config.get("sources") or ()) == 1 and not config.get("subjects")
    if not alone or config.get("max_msgs_per_subject") != 1 or created <= parse_time(aggregate["created"]):
        return Lineage(True)
    if not state["messages"] or parse_time(state["first_ts"]) + _SKEW >= created:
        return Lineage(True)
    if theirs["messages"] and parse_time(theirs["first_ts"]) < created:
        return Lineage(None, f"`{of}` was restored after `{name}` was created, which may hold old values")
    oldest = format_time(parse_time(state["first_ts"]))
    text = f"`{name}` holds entries that arrived on {oldest}, but `{of}` was recreated on {format_time(created)}"
    return Lineage(False, text)


def _older(name: str, of: str, mirror: StreamInfo, origin: StreamInfo, created: int) -> Lineage:
    theirs = origin["state"]
    if theirs["messages"] and parse_time(theirs["first_ts"]) < created:
        # Restored, or a mirror itself: the entries may be the same.
        return Lineage(None, f"`{of}` was restored or recreated after `{name}`, which may hold old values")
    oldest = format_time(parse_time(mirror["state"]["first_ts"]))
    text = f"`{name}` holds entries of {oldest}, but `{of}` was recreated on {format_time(created)}"
    return Lineage(False, f"{text}: the mirror keeps serving the old values")


def _filtered(mirror: StreamInfo) -> bool:
    source = mirror["config"]["mirror"]
    return bool(source.get("filter_subject") or source.get("subject_transforms"))
