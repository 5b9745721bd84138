"""What an audit has to have read before it proves anything, and what no content makes good. [pure]"""

from __future__ import annotations

from collections.abc import Mapping

from kvctl.jetstream.stream_info import StreamInfo
from kvctl.topology.discover.inventory import Link
from kvctl.topology.discover.replicas import Replica
from kvctl.topology.hazards.hazards import Hazard
from kvctl.topology.hazards.replica_hazards import (
    FILTERED_MIRROR,
    OUTSIDE_PREFIX,
    RENAMING_MIRROR,
    name_of,
    of_replica,
)

HERE = -1
"""The replica among the numbers of its origins."""
_HIDING = (FILTERED_MIRROR, RENAMING_MIRROR, OUTSIDE_PREFIX)


def unread(
    before: Mapping[int, StreamInfo], after: Mapping[int, StreamInfo], read: Mapping[int, int]
) -> list[tuple[int, str]]:
    """The sides of which fewer keys were read than there were all the time: those now, but for what has come since."""
    found = []
    for number in before:
        then, now = before[number]["state"], after[number]["state"]
        least = (now.get("num_subjects") or 0) - (now["last_seq"] - then["last_seq"])
        if read[number] < least:
            name = name_of(after[number]["config"])
            found.append((number, f"Only {read[number]} of {least} keys of `{name}` could be read"))
    return found


def hiding(replica: Replica, link: Link) -> list[Hazard]:
    """What in a replica's configuration keeps clients from finding the keys that come over a link."""
    config, origin = replica.info["config"], link.origin["config"] if link.origin else None
    if not config.get("mirror"):
        config = {**config, "sources": [link.source]}
    return [hazard for hazard in of_replica(config, [origin]) if hazard.name in _HIDING]
