"""Shared parts of `kvctl mirror` and `kvctl aggregate`: options, creation, waiting, listings."""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any

from kvctl.cli.app.options import duration, flag
from kvctl.cli.app.session import Session
from kvctl.cli.bucket import details
from kvctl.cli.facts import of_stream, origin_rows, row_of
from kvctl.cli.flows import show_config, show_result
from kvctl.cli.records import REPLICA_ROW
from kvctl.errors import BucketNotFound
from kvctl.jetstream.stream_info import StreamInfo
from kvctl.kv import config as kv_config
from kvctl.kv import stream_kind
from kvctl.phrases import counted, joined
from kvctl.render.fields import columns
from kvctl.render.view import Column, View
from kvctl.topology.apply import builders
from kvctl.topology.health import arrival, overview
from kvctl.topology.health import health as health_health
from kvctl.topology.survey import graph
from kvctl.topology.survey import inventory as survey_inventory

NoWait = Annotated[bool, flag("--no-wait", "Do not wait for the replica to fill")]
WaitFor = Annotated[timedelta | None, duration("--wait-for", "Longest wait for the replica to fill [default: 60s]")]
DenyPurge = Annotated[
    bool, flag("--deny-purge", "Deny purges; a purge at the origin then leaves the history readable here")
]


async def build(
    session: Session,
    plan: "builders.ReplicaPlan",
    what: str,
    *,
    force: list[str] | None,
    wait_for: timedelta | None,
    no_wait: bool,
    dry_run: bool,
) -> None:
    """Apply a plan, wait, report the result; `what` is `mirror` or `aggregate`. Raises as `apply` and `wait`."""
    for warning in plan.warnings:
        session.warn(warning)
    changes = plan.changes
    if dry_run and changes:
        show_config(session, f"{what} `{plan.name}`", plan.config, plan.hazards, live=plan.info)
        return
    if not dry_run:
        api, begun, entries = (await session.client()).api, time.monotonic(), 0
        info = await builders.apply(api, plan, force or ())
        if not no_wait:
            with session.progress(f"Filling {plan.name}", arrival.total(plan.goals), unit="entries") as progress:

                def advance(count: int) -> None:
                    nonlocal entries
                    entries += count
                    progress.advance(count)

                await builders.wait(api, plan, arrival.WAIT_FOR if wait_for is None else wait_for, advance)
    text = f"{what.capitalize()} `{plan.name}` already exists with this configuration"
    if changes and not dry_run:
        filled = "" if no_wait else f": {counted(entries, 'entry')} in {time.monotonic() - begun:.1f} s"
        text = f"{_built(plan, what)}{filled}.{_answering(plan, info)}"
        text += f" Watch it with `kvctl topology status {plan.name} --watch`"
    row = {"name": plan.name, "stream": plan.config["name"], "origins": origin_rows(plan.config), "changed": changes}
    show_result(session, row, text)


def _built(plan: "builders.ReplicaPlan", what: str) -> str:
    """Say what was created from which origins, or which origin was added."""
    names = list(dict.fromkeys(row["name"] for row in origin_rows(plan.config)))
    if plan.info is not None:
        before = [row["name"] for row in origin_rows(plan.info["config"])]
        added = [name for name in names if name not in before] or names[-1:]
        return f"Added origin {joined(f'`{name}`' for name in added)} to `{plan.name}`"
    return (
        f"Created {what} `{plan.name}` {'of' if what == 'mirror' else 'from'} {joined(f'`{name}`' for name in names)}"
    )


def _answering(plan: "builders.ReplicaPlan", info: "StreamInfo") -> str:
    """Say of which bucket a mirror answers reads, and where."""
    if not plan.config.get("mirror") or not info["config"].get("mirror_direct"):
        return ""
    (origin,) = origin_rows(plan.config)
    cluster = (info.get("cluster") or {}).get("name")
    return f" It answers reads of `{origin['name']}`{f' near cluster `{cluster}`' if cluster else ''}."


async def list_replicas(session: Session, kind: str, empty: str) -> None:
    """Print all mirrors, or all aggregates, with the worst state of their links to origins."""
    inventory = await survey_inventory.survey({"": (await session.client()).api})
    place = inventory.places[""]
    found: dict[str, list[health_health.ReplicaHealth]] = {
        stream: [] for stream in place.known if place.kind(stream) == kind
    }
    for item in await health_health.check_health(
        inventory.only(link for link in inventory.links if link.reader in found)
    ):
        found[item.link.reader].append(item)
    rows = [_row(place, place.known[stream], health) for stream, health in found.items()]
    if kind == "mirror":
        rows += [_clued(stream, place) for stream in place.unknown if stream in place.clues]
    rows.sort(key=lambda row: str(row["name"]))
    session.show(View(columns=_LISTED, rows=rows, empty=empty))
    if unknown := [f"`{stream}`" for stream in place.unknown if stream not in place.clues]:
        session.warn(f"Offline streams that may be {kind}s: {', '.join(unknown)}")


async def show_replica(session: Session, name: str, kind: str) -> None:
    """Print all that is known of a mirror or an aggregate. Raises BucketNotFound, RefusedError for other kinds."""
    api = (await session.client()).api
    try:
        found = await overview.inspect(api, name)
    except BucketNotFound:
        await (builders.find_mirror(api, name) if kind == "mirror" else builders.find_aggregate(api, name))
        raise
    if found.info is not None:
        builders.require_kind(name, found.info["config"], stream_kind.Kind(kind))
    details.show(session, found)


def _row(place: "graph.Place", info: StreamInfo, found: "list[health_health.ReplicaHealth]") -> dict[str, Any]:
    configs = {name: other["config"] for name, other in place.known.items()}
    status = kv_config.BucketStatus.from_info(info, configs)
    state = health_health.worst(found)
    return row_of(
        REPLICA_ROW,
        of_stream(info, offline=info in place.offline.values()),
        name=status.bucket,
        lag=_if_known([item.lag for item in found], sum),
        state=str(state.state) if state else None,
        last_seen=_if_known([item.last_seen for item in found], max),
        error="; ".join(origin.error for origin in graph.upstreams(info) if origin.error) or None,
        cluster=place.cluster_of(status.stream),
    )


def _clued(stream: str, place: "graph.Place") -> dict[str, Any]:
    """Return the row of an offline mirror of which only its origin and its cluster are known."""
    origins, cluster = origin_rows({"mirror": place.clues[stream].source}), place.cluster_of(stream)
    return row_of(REPLICA_ROW, {"state": "offline"}, name=stream, stream=stream, origins=origins, cluster=cluster)


def _if_known(numbers: list[Any], combine: Callable[[list[Any]], Any]) -> Any:
    """Combine the numbers, unless one of them is unknown."""
    return combine(numbers) if numbers and None not in numbers else None


_LISTED = columns(
    "name origins state lag last_seen values bytes history ttl cluster error description",
    cluster=Column("cluster", differs=True),
    error=Column("error", style="red", flex=True, keep=True),
)
