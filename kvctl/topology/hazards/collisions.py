"""Keys that two origins of an aggregate both write, predicted from the keys that they hold."""

from __future__ import annotations

from kvctl.errors import KvctlError, StreamNotFound
from kvctl.jetstream import streams
from kvctl.jetstream.api import Api
from kvctl.jetstream.stream_info import Source, StreamConfig
from kvctl.kv.names import SUBJECT_PREFIX, matches
from kvctl.phrases import quoted
from kvctl.topology.hazards.hazards import COLLISION, KEY_COLLISION, Hazard, Landing, name_of, overlaps, whose
from kvctl.topology.model.subjects import UnknownTransform

SHOWN = 3
"""Number of colliding keys to name."""


async def stored(api: Api, config: StreamConfig, since: int = 0) -> tuple[list[Hazard], list[str]]:
    """Return collisions among the stored keys of the origins, and warnings about possible collisions.

    Rules that land in exactly the same place are a hazard without reading keys (`of_aggregate`). For an existing
    aggregate, only sources from number `since` on are examined.
    """
    found: list[Hazard] = []
    warnings: list[str] = []
    own = f"{SUBJECT_PREFIX}{name_of(config)}."
    for one, other in overlaps(config):
        if one.pattern == other.pattern or max(one.number, other.number) < since:
            continue
        places = f"`{one.pattern.removeprefix(own)}`, `{other.pattern.removeprefix(own)}`"
        try:
            both = sorted(await _landed(api, one, other) & await _landed(api, other, one))
        except (KvctlError, UnknownTransform) as error:
            warnings.append(f"{whose(one, other)} could write the same keys ({places}); could not check: {error}")
            continue
        if both:
            keys = quoted((key.removeprefix(own) for key in both), SHOWN)
            found.append(Hazard(KEY_COLLISION, f"{whose(one, other)} write the same keys, {keys}: {COLLISION}"))
        else:
            warnings.append(f"{whose(one, other)} could write the same keys ({places}); no stored key does")
    return found, warnings


async def _landed(api: Api, landing: Landing, other: Landing) -> set[str]:
    """Return where the rule's stored keys land, limited to the places that the other rule can write."""
    prefix = Source.parse(landing.source).api
    there = api.at(prefix) if prefix else api
    try:
        subjects = await streams.subjects(there, landing.source["name"], landing.rule.src)
    except StreamNotFound:
        return set()  # about to be created
    landed = (landing.rule.apply(subject) for subject in subjects)
    return {subject for subject in landed if subject is not None and matches(subject, (other.pattern,))}
