"""Conditions for an audit to prove anything: complete readings, and keys that clients can find. [pure]"""

from __future__ import annotations

from collections.abc import Mapping

from kvctl.jetstream.stream_info import StreamInfo
from kvctl.topology.hazards.hazards import Hazard
from kvctl.topology.hazards.replica_hazards import FILTERED_MIRROR, OUTSIDE_PREFIX, RENAMING_MIRROR, name_of, of_replica
from kvctl.topology.survey.graph import Link, Replica

HERE = -1
"""Number of the replica, among those of its origins."""
_HIDING = (FILTERED_MIRROR, RENAMING_MIRROR, OUTSIDE_PREFIX)


def unread(
    before: Mapping[int, StreamInfo], after: Mapping[int, StreamInfo], read: Mapping[int, int]
) -> list[tuple[int, str]]:
    """Return the sides of which fewer keys were read than certainly existed: the current ones, without newer ones."""
    found = []
    for number in before:
        then, now = before[number]["state"], after[number]["state"]
        least = (now.get("num_subjects") or 0) - (now["last_seq"] - then["last_seq"])
        if read[number] < least:
            name = name_of(after[number]["config"])
            found.append((number, f"Could read only {read[number]} of {least} keys of `{name}`"))
    return found


def hiding(replica: Replica, link: Link) -> list[Hazard]:
    """Return the hazards by which a replica's configuration hides the keys of a link from clients."""
    config, origin = replica.info["config"], link.origin["config"] if link.origin else None
    if not config.get("mirror"):
        config = {**config, "sources": [link.source]}
    return [hazard for hazard in of_replica(config, [origin]) if hazard.name in _HIDING]
