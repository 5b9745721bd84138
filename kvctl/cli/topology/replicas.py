"""Shared parts of `kvctl mirror` and `kvctl aggregate`: options, creation, waiting, listings."""

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvctl.cli.app.parameters import duration
from kvctl.cli.app.session import Session
from kvctl.cli.bucket.views import origin_rows, origins_text
from kvctl.phrases import quoted
from kvctl.render.view import Column, View, age_text, document, duration_text, size_text
from kvctl.units import duration_seconds, format_time

if TYPE_CHECKING:
    from kvctl.jetstream.stream_info import StreamInfo
    from kvctl.kv.config import BucketStatus
    from kvctl.topology.apply.builders import Plan

NoWait = Annotated[bool, typer.Option("--no-wait", help="Do not wait for the replica to fill")]
WaitFor = Annotated[timedelta | None, duration("--wait-for", help="Longest wait for the replica to fill (default 60s)")]
DenyPurge = Annotated[
    bool,
    typer.Option("--deny-purge", help="Deny purges; a purge at the origin then leaves the history readable here"),
]


async def build(
    session: Session,
    plan: "Plan",
    what: str,
    *,
    force: list[str] | None,
    wait_for: timedelta | None,
    no_wait: bool,
    dry_run: bool,
) -> None:
    """Apply a plan, wait, report the result; `what` is `mirror` or `aggregate`. Raises as `apply` and `wait`."""
    from kvctl.topology.apply import arrival, builders

    for warning in plan.warnings:
        session.warn(warning)
    new, changes = plan.info is None, plan.changes
    if dry_run and changes:
        show_config(session, plan.config)
        for hazard in plan.hazards:
            session.warn(f"{hazard.evidence}: needs `--force {hazard.name}`")
        return
    if not dry_run:
        api, begun, entries = (await session.client()).api, time.monotonic(), 0
        info = await builders.apply(api, plan, force or ())
        if not no_wait:
            with session.progress(f"Filling {plan.name}", arrival.total(plan.goals)) as progress:

                def advance(count: int) -> None:
                    nonlocal entries
                    entries += count
                    progress.advance(count)

                await builders.wait(api, plan, wait_for or arrival.WAIT_FOR, advance)
    text = f"{what.capitalize()} `{plan.name}` already exists with this configuration"
    if changes and not dry_run:
        filled = "" if no_wait else f": {_entries(entries)} in {time.monotonic() - begun:.1f} s"
        text = f"{'Created' if new else 'Changed'} {what} `{plan.name}`{_built(plan, info)}{filled}"
        text += f". Watch it with `kvctl topology status {plan.name} --watch`"
    row = {"name": plan.name, "stream": plan.config["name"], "origins": origin_rows(plan.config), "changed": changes}
    tell(session, row, text, always=not changes)


def _built(plan: "Plan", info: "StreamInfo") -> str:
    """Return the origins of a replica, and what a mirror answers."""
    origins = " and ".join(f"`{name}`" for name in dict.fromkeys(row["name"] for row in origin_rows(plan.config)))
    if not plan.config.get("mirror"):
        return f" from {origins}"
    if not info["config"].get("mirror_direct"):
        return f" of {origins}"
    cluster = (info.get("cluster") or {}).get("name")
    return f" of {origins}, which answers its reads" + (f" near cluster `{cluster}`" if cluster else "")


def _entries(count: int) -> str:
    return "1 entry" if count == 1 else f"{count:,} entries"


def show_config(session: Session, config: dict[str, Any]) -> None:
    """Print a stream configuration, as JSON unless `--output` is given."""
    if session.options.output is None:
        session.output = "json"
    session.show(document(config))


def tell(session: Session, row: dict[str, Any], text: str, *, always: bool = False, name: str | None = None) -> None:
    """Print a result: the row with `--output`, else a note on a terminal, with `always` also in a pipe.

    `-o name` prints the field `name`, by default the first.
    """
    if session.options.output:
        session.show(document(row, name=name or next(iter(row))))
    else:
        session.note(text, always=always)


async def list_replicas(session: Session, kind: str, empty: str) -> None:
    """Print all mirrors, or all aggregates."""
    from kvctl.kv import catalog

    found = await catalog.listing((await session.client()).api)
    rows = [_row(status) for status in found.statuses if str(status.kind) == kind]
    rows += [_offline(status) for status in found.offline if str(status.kind) == kind]
    session.show(View(columns=_COLUMNS, rows=sorted(rows, key=lambda row: str(row["name"])), empty=empty))
    if found.unreachable:
        session.warn(f"Streams that do not answer: {quoted(found.unreachable)}")


def _row(status: "BucketStatus") -> dict[str, Any]:
    from kvctl.topology.discover.links import upstreams

    origins = upstreams(status.info)
    heard = [origin.active for origin in origins]
    return {
        "name": status.bucket,
        "stream": status.stream,
        "origins": origin_rows(status.config),
        "values": status.values,
        "bytes": status.bytes,
        "history": status.history,
        "ttl": duration_seconds(status.ttl) or None,
        "replicas": status.replicas,
        "lag": sum(origin.lag for origin in origins),
        "state": next((origin.state for origin in origins if origin.state != "connected"), "connected"),
        "active": None if None in heard else max((seconds for seconds in heard if seconds is not None), default=None),
        "error": "; ".join(origin.error for origin in origins if origin.error) or None,
        "last_revision": status.last_revision,
        "created": format_time(status.created_ns),
        "description": status.config.get("description") or None,
    }


def _offline(status: "BucketStatus") -> dict[str, Any]:
    """Return the row of a replica whose servers do not answer, from its configuration alone."""
    unseen = dict.fromkeys(("values", "bytes", "lag", "active", "error", "last_revision"))
    return {**_row(status), **unseen, "state": "unreachable"}


def _last_seen_text(seconds: float) -> str:
    return "just now" if seconds < 1.5 else f"{duration_text(round(seconds))} ago"


_COLUMNS = (
    Column("name"),
    Column("stream", table=False),
    Column("origins", text=origins_text),
    Column("values", right=True),
    Column("bytes", "SIZE", text=size_text, right=True),
    Column("history", right=True),
    Column("ttl", text=duration_text, right=True),
    Column("replicas", right=True, table=False),
    Column("lag", right=True, keep=True),
    Column("state", keep=True, style=lambda state: "" if state == "connected" else "red"),
    Column("active", "LAST SEEN", text=_last_seen_text),
    Column("error", style="red", flex=True, keep=True),
    Column("last_revision", table=False),
    Column("created", text=age_text, table=False),
    Column("description", flex=True),
)
