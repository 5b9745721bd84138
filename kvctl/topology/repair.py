"""Bring replicas back to what their origins hold: mirrors are made anew, aggregates get again what is wrong in them.

Nothing is taken away before its replacement has arrived, and whatever is interrupted is completed by the next repair:
what it needs for that stands on the server (`repairs`).
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from kvctl.errors import BucketNotFound, KvctlError, RefusedError, WaitExpired
from kvctl.jetstream import direct, streams
from kvctl.jetstream.api import Api
from kvctl.kv import catalog
from kvctl.kv.kinds import SERVER_METADATA, Kind, StreamConfig
from kvctl.kv.names import is_plain
from kvctl.topology import waiting
from kvctl.topology.findings import LOCAL_WRITE, Difference, Outcome
from kvctl.topology.mapping import Mapping
from kvctl.topology.model import Origin
from kvctl.topology.observe import live_part
from kvctl.topology.origins import Seen
from kvctl.topology.removal import AT_ONCE
from kvctl.topology.repairs import is_stand_in, is_temporary, original, stand_in, temporary, token_of
from kvctl.topology.replica_hazards import name_of
from kvctl.topology.replicas import Replica, origin_api
from kvctl.topology.sides import Side
from kvctl.topology.verdicts import Verdict
from kvctl.topology.waiting import WAIT_FOR, Goal
from kvctl.topology.world import Link, Place, World, reads

AT_A_TIME = 500
"""Keys that one source brings."""
MANY = 5_000
"""Keys from which on everything of an origin is brought again."""

_PAUSE = 0.1
_TELLS = (2, 15)
"""Servers from this version on say how far a source has come."""

Advance = Callable[[int], None]
"""Told of messages that have arrived."""


@dataclass(frozen=True, slots=True)
class Repair:
    """What has to be done about one replica. Nothing is changed yet."""

    replica: Replica
    differences: Sequence[Difference] = ()
    """All there are, for an aggregate."""

    @property
    def purged(self) -> list[Difference]:
        """Keys that an aggregate has to forget."""
        return [] if self._mirror else [item for item in self.differences if item.kind is Verdict.EXTRA]

    @property
    def fed(self) -> list[Difference]:
        """Keys that an aggregate has to get again."""
        return [] if self._mirror else [item for item in self.differences if item.kind is not Verdict.EXTRA]

    @property
    def overwritten(self) -> list[Difference]:
        """Of those, the ones that were written in the aggregate itself."""
        return [item for item in self.fed if item.cause == LOCAL_WRITE]

    @property
    def _mirror(self) -> bool:
        return self.replica.kind is Kind.MIRROR


@dataclass(frozen=True, slots=True)
class StandIn:
    """What an interrupted repair left of a mirror."""

    place: Place
    config: StreamConfig
    exists: bool
    """Whether the mirror itself is there."""
    link: Link = field(compare=False)

    @property
    def name(self) -> str:
        """The mirror's."""
        return name_of(original(self.config))


def stand_ins(world: World, names: Collection[str] = ()) -> list[StandIn]:
    """The stand-ins in view; with names only of mirrors, or of origins, of these names."""
    found = [
        StandIn(link.place, config, original(config)["name"] in link.place.infos, link)
        for link in world.links
        if is_stand_in(config := link.info["config"])
    ]
    return [item for item in found if not names or {item.name, name_of(item.link.source)} & {*names}]


def needed(replica: Replica, outcomes: Iterable[Outcome], differences: Sequence[Difference]) -> Repair | None:
    """What has to be done about a replica that was audited; None: nothing."""
    drift = any(outcome.consistent is False for outcome in outcomes)
    return Repair(replica, differences) if drift or is_unfinished(replica) else None


def is_unfinished(replica: Replica) -> bool:
    """Whether an interrupted repair left sources in an aggregate."""
    return any(is_temporary(source) for source in reads(replica.info))


async def carry_out(repair: Repair, limit: timedelta = WAIT_FOR, advance: Advance = lambda _: None) -> None:
    """Repair one replica, waiting at most `limit` for what arrives in each step.

    Raises WaitExpired when what is needed does not arrive (it is as it was then), RefusedError for an aggregate that
    denies purges, ReadOnly, OutcomeUnknown, ServerError.
    """
    replica = repair.replica
    if replica.kind is Kind.MIRROR:
        await _recreate(replica.links[0], limit, advance)
    else:
        await _feed(repair, limit, advance)


async def complete(left: StandIn, limit: timedelta = WAIT_FOR, advance: Advance = lambda _: None) -> None:
    """Finish the repair that left a stand-in: the mirror is made if it is missing. Raises as `carry_out`."""
    if not left.exists:
        await _create(left.place.api, original(left.config), left.link, limit, advance)
    await _delete(left.place.api, left.config["name"])


# -- mirrors -----------------------------------------------------------------------------------------------


async def _recreate(link: Link, limit: timedelta, advance: Advance) -> None:
    """A stand-in first: it shows that a new mirror fills, and answers reads while there is none."""
    api = link.place.api
    config = _own(await streams.info(api, link.info["config"]["name"]))
    beside = stand_in(config)
    await _delete(api, beside["name"])
    try:
        await _create(api, beside, link, limit, advance)
    except WaitExpired as error:
        await _delete(api, beside["name"])
        text = f"Mirror `{name_of(config)}` stays as it is, a new one does not fill"
        raise WaitExpired(
            error.message.replace(f"`{beside['name']}` exists, and", f"{text}:"), hint=error.hint
        ) from None
    await catalog.delete(api, config["name"])
    await _create(api, config, link, limit, advance)
    await _delete(api, beside["name"])


async def _create(api: Api, config: StreamConfig, link: Link, limit: timedelta, advance: Advance) -> None:
    """Make a mirror and wait until it holds what its origin does."""
    goals = await waiting.goals([(0, config["mirror"], await _seen(link))])
    await catalog.create_stream(api, config)
    await waiting.until_filled(api, config["name"], goals, limit, advance)


async def _delete(api: Api, stream: str) -> None:
    with suppress(BucketNotFound):
        await catalog.delete(api, stream)


def _own(info: dict[str, Any]) -> StreamConfig:
    """The configuration without what servers add."""
    config: StreamConfig = dict(info["config"])
    metadata = config.get("metadata") or {}
    kept = {key: value for key, value in metadata.items() if not key.startswith(SERVER_METADATA)}
    return {**config, "metadata": kept}


# -- aggregates --------------------------------------------------------------------------------------------


async def _feed(repair: Repair, limit: timedelta, advance: Advance) -> None:
    replica = repair.replica
    api, stream = replica.place.api, replica.stream
    if repair.purged and replica.info["config"].get("deny_purge"):
        raise RefusedError(
            f"`{replica.name}` denies purges, so what it holds too much cannot be removed",
            hint=f"Delete it and create it anew: `kvctl bucket show {replica.name} -o json` has its configuration",
        )
    await _drop_temporary(api, stream)
    await _purge(api, stream, repair.purged)
    for sources in _rounds(replica.links, repair.fed):
        await _bring(api, stream, sources, limit, advance)


def _rounds(links: Sequence[Link], wanted: Sequence[Difference]) -> list[list[tuple[Link, dict[str, Any]]]]:
    """The temporary sources that bring these keys, and which can be there at the same time."""
    told = [_told(link, wanted) for link in links]
    known = {subject for pairs in told for _, subject in pairs}
    lost = {item.origin for item in wanted if item.subject not in known}
    rounds: list[list[tuple[Link, dict[str, Any]]]] = []
    for link, pairs in zip(links, told, strict=True):
        if name_of(link.source) in lost or len(pairs) > MANY:
            chunks = [temporary(link.source, secrets.token_hex(6))]
        else:
            starts = range(0, len(pairs), AT_A_TIME)
            parts = [dict(pairs[start : start + AT_A_TIME]) for start in starts]
            chunks = [temporary(link.source, secrets.token_hex(6), part) for part in parts]
        for number, source in enumerate(chunks):
            if number == len(rounds):
                rounds.append([])
            rounds[number].append((link, source))
    return rounds


def _told(link: Link, wanted: Iterable[Difference]) -> list[tuple[str, str]]:
    """Subjects of the origin, and where they land, of those keys for which a rule of their own can be written."""
    rules, name = Mapping.of(link.source), name_of(link.source)
    named = ((rules.origin(item.subject), item.subject) for item in wanted if item.origin == name)
    return sorted((subject, landed) for subject, landed in named if subject and is_plain(subject))


async def _bring(
    api: Api, stream: str, sources: Sequence[tuple[Link, dict[str, Any]]], limit: timedelta, advance: Advance
) -> None:
    """Let the sources bring all they have, and take them away again."""
    info = await streams.info(api, stream)
    there = info["config"]["sources"]
    goals: list[Goal] = await waiting.goals(
        [(len(there) + number, source, await _seen(link)) for number, (link, source) in enumerate(sources)]
    )
    after = {**info["config"], "sources": [*there, *(source for _, source in sources)]}
    try:
        await catalog.apply_edit(api, catalog.Edit(info, after))
        await _until_brought(api, stream, goals, limit, advance)
    finally:
        await asyncio.shield(_drop_temporary(api, stream))


async def _until_brought(api: Api, stream: str, goals: Sequence[Goal], limit: timedelta, advance: Advance) -> None:
    """Wait until each temporary source has come to its goal: what another one of the same stream brought is no sign.

    Raises WaitExpired.
    """
    deadline, shown = time.monotonic() + limit.total_seconds(), 0
    left = list(goals)
    while left:
        info = await streams.info(api, stream)
        left = [goal for goal in left if not await _brought(api, info, goal)]
        advance(max(info["state"]["last_seq"] - shown, 0) if shown else 0)
        shown = info["state"]["last_seq"]
        if left and time.monotonic() > deadline:
            names = ", ".join(f"`{name_of(goal.source)}`" for goal in left)
            raise WaitExpired(f"After {limit.total_seconds():g} s not everything has come from {names}")
        if left:
            await asyncio.sleep(_PAUSE)


async def _brought(api: Api, info: dict[str, Any], goal: Goal) -> bool:
    """Whether a temporary source has come to its goal, or the goal's entry has gone meanwhile."""
    told = live_part(goal.source, info.get("sources") or [])
    if told.get("active", -1) < 0 or told.get("error"):
        return False
    if not goal.sequence or told.get("seq", 0) >= goal.sequence:
        return True
    landed = Mapping.of(goal.source).land((goal.subject or "").encode())
    if landed is None or api.connection.server_version >= _TELLS:
        gone = await Side(goal.seen.api, goal.source["name"]).at(goal.sequence) is None
        return gone and not told.get("lag")
    message = await direct.from_leader(api, info["config"]["name"], last_by_subj=landed.decode())
    return message is not None and waiting.source_sequence(message.header, goal.source["name"]) >= goal.sequence and (
        token_of(goal.source).encode() in message.header
    )  # fmt: skip


async def _drop_temporary(api: Api, stream: str) -> None:
    """Take away what this or an interrupted repair added."""
    info = await streams.info(api, stream)
    there = info["config"]["sources"]
    kept = [source for source in there if not is_temporary(source)]
    if kept != there:
        await catalog.apply_edit(api, catalog.Edit(info, {**info["config"], "sources": kept}))


async def _purge(api: Api, stream: str, wanted: Iterable[Difference]) -> None:
    """Forget keys up to the revision that was found too much: what has come since stays."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def purge(item: Difference) -> None:
        assert item.revision is not None
        async with slots:
            await streams.purge(api, stream, filter=item.subject, seq=item.revision + 1)

    await asyncio.gather(*(purge(item) for item in wanted if is_plain(item.subject)))


async def _seen(link: Link) -> Seen:
    api, stream = origin_api(link), link.source["name"]
    try:
        info = await streams.info(api, stream)
    except KvctlError:
        info = None
    return Seen(Origin(stream=stream), api, info, None if info is None else True)
