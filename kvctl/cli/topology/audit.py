"""`kvctl topology audit`: compare replicas with their origins, and repair those that differ."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated, Any

from kvctl.cli.app.command import command
from kvctl.cli.app.options import DryRun, MarkdownFormat, Yes, argument, bucket_names, check_markdown, duration, flag
from kvctl.cli.app.session import Session
from kvctl.cli.flows import change_lines
from kvctl.cli.records import AUDIT, AUDIT_DIFFERENCE, REPAIR
from kvctl.cli.topology import audit_views
from kvctl.cli.topology.file import OptionalFile, open_places, read_file
from kvctl.errors import BucketNotFound, KvctlError, UsageError
from kvctl.jetstream import api
from kvctl.kv import catalog
from kvctl.kv import names as kv_names
from kvctl.phrases import counted, quoted
from kvctl.render.escapes import utf8
from kvctl.topology.audit import audit as replica_audit
from kvctl.topology.audit import repair as audit_repair
from kvctl.topology.audit import verdict
from kvctl.topology.health import arrival
from kvctl.topology.model import file as model_file
from kvctl.topology.survey import graph
from kvctl.topology.survey import inventory as survey_inventory

DRIFT = 4
UNREADABLE = 5

Names = Annotated[list[str] | None, argument("NAME", "Mirrors, aggregates, or their origins", bucket_names)]
All = Annotated[bool, flag("--all", "List every difference instead of counts and samples")]
WaitFor = Annotated[
    timedelta | None, duration("--wait-for", "Longest wait for late entries [default: 10s, with --repair 60s]")
]


@dataclass
class Work:
    """Scope and findings of one run."""

    replicas: "list[graph.Replica]"
    left: "list[audit_repair.StandIn]"
    """Mirrors whose repair was interrupted."""
    outcomes: "list[verdict.AuditOutcome]" = field(default_factory=list)
    repairs: "list[audit_repair.Repair]" = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    """Streams that do not answer and are, or may be, replicas."""


@command(
    "topology audit",
    examples=[
        "kvctl topology audit",
        "kvctl topology audit ORDERS",
        "kvctl topology audit ORDERS_NYC --all -o ndjson",
        "kvctl topology audit -f topology.yaml",
        "kvctl topology audit ORDERS --repair --dry-run",
    ],
    see=["help audit", "mirror show", "bucket diff"],
    prints=(AUDIT, AUDIT_DIFFERENCE, REPAIR),
    in_pipe="table",
)
async def audit(
    session: Session,
    names: Names = None,
    file: OptionalFile = None,
    list_all: All = False,
    repair: Annotated[bool, flag("--repair", "Repair replicas that differ, after confirmation")] = False,
    wait_for: WaitFor = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    format: MarkdownFormat = None,
) -> int:
    """Compare replicas with their origins, key by key.

    The audit compares the latest operation and value of every key, and in mirrors its revision. The name of a bucket
    selects all its replicas, direct and indirect; without NAME or --file all replicas in view are compared. Buckets may
    be written to during the audit: the audit reads differences again at the leaders, and waits for late entries.

    A replica in which clients cannot find their keys also counts as differing: a mirror that answers reads of its
    origin but holds only some keys or renames them, or an aggregate whose keys land outside of its own prefix. Repairs
    do not change that. Older revisions of a key's history are not compared.

    The exit code is 4 if a replica differs. It is 5 if no difference was found but something could not be read. A
    stream that does not answer counts as unread, because it may be a replica. So does an origin that is a replica and
    lacks entries of its own origins.

    --repair recreates mirrors while a temporary copy serves their reads. In aggregates, it copies missing and wrong
    keys again from their origins and removes extra keys. Then it audits again.

    With --format markdown, the result is a report for a pull request or a job summary.
    """
    check_markdown(format, session.options.output)
    if format and (list_all or repair):
        raise UsageError(f"`--format` and `{'--all' if list_all else '--repair'}` cannot be combined")
    await _check(session, names, file, repair=repair, yes=yes, dry_run=dry_run)
    topology = read_file(session, file) if file else None
    apis = await open_places(session, topology) if topology else {"": (await session.client()).api}
    work = await _find(apis, names or [], topology)
    if not work.replicas and not work.left and not work.unseen:
        session.note("Nothing to audit: no mirrors or aggregates", always=True)
    patience = timedelta(seconds=10) if wait_for is None else wait_for
    if format is not None:
        await _audit(session, work, patience)
        session.write(audit_views.audit_markdown(work.outcomes, work.unseen).encode())
        return exit_code(work)
    if not repair:
        await _show(session, work, patience, list_all=list_all)
        return exit_code(work)
    await _audit(session, work, patience, for_repair=True)
    if not work.repairs and not work.left:
        say(session, work, list_all=list_all)
        return exit_code(work)
    if dry_run:
        _preview(session, work.repairs)
        for left in work.left:
            session.note(f"The interrupted repair of mirror `{left.name}` would be completed", always=True)
        return 0
    if session.terminal.is_terminal:
        say(session, work, list_all=list_all)
    await _repair(session, work, wait_for, yes=yes)
    again = await _find(apis, names or [], topology)
    await _show(session, again, patience, list_all=list_all)
    return exit_code(again)


def _preview(session: Session, repairs: "Sequence[audit_repair.Repair]") -> None:
    """Print what would be repaired, as a plan, or as rows."""
    if session.options.output or session.options.columns or not repairs:
        session.show(audit_views.repairs_view(repairs))
        return
    for repair in repairs:
        mirrored, what = repair.replica.kind == "mirror", f"{repair.replica.kind} `{repair.replica.name}`"
        counts = {"refills": repair.refilled, "overwrites": repair.overwritten, "purges": repair.purged}
        remarks = [f"{verb} {counted(len(keys), 'key')}" for verb, keys in counts.items() if keys]
        remarks = ["copies all entries of its origin again"] if mirrored else remarks
        action = "recreate" if mirrored else "change"
        lines = change_lines(action, what, (), remarks, colored=session.terminal.colored)
        session.write(utf8("".join(f"{line}\n" for line in lines)))


async def _check(
    session: Session, names: list[str] | None, file: str | None, *, repair: bool, yes: bool, dry_run: bool
) -> None:
    """Check the arguments before anything is sent. Raises UsageError, ReadOnly."""
    if names and file:
        raise UsageError("NAME and `--file` cannot be combined")
    if not repair and (yes or dry_run):
        raise UsageError(f"`{'--dry-run' if dry_run else '--yes'}` needs `--repair`: an audit changes nothing")
    for name in names or ():
        kv_names.check_bucket(name)
    if repair and not dry_run:
        session.context.require_writable()
        if not session.interactive:
            await session.confirm("Repair the replicas that differ?", yes=yes)


async def _find(apis: "Mapping[str, api.Api]", names: Sequence[str], topology: "model_file.Topology | None") -> Work:
    """Find the replicas to audit. Raises BucketNotFound."""
    inventory = await survey_inventory.survey(apis)
    found, left = inventory.replicas(), audit_repair.stand_ins(inventory, names)
    if topology is not None:
        unseen = _unseen_of_file(topology, inventory)
        return Work(_of_file(topology, found, unseen), left, unseen=[stream for _, _, stream in unseen])
    known = {*(item.name for item in found), *(item.name for item in left)}
    for name in names:
        if name not in known and not graph.is_origin(found, name):
            await catalog.find(apis[""], name)
    unknown = [stream for place in inventory.places.values() for stream in place.unknown]
    return Work(graph.named(found, names) if names else found, left, unseen=unknown)


def _unseen_of_file(topology: "model_file.Topology", inventory: "graph.Inventory") -> list[tuple[str, str, str]]:
    """List place, name and stream of the file's replicas that do not answer and whose configuration is unknown."""
    streams = {name: name for name in topology.mirrors}
    streams |= {name: kv_names.STREAM_PREFIX + name for name in topology.aggregates}
    at = {name: topology.places.get(name, "") for name in streams}
    return [
        (at[name], name, stream) for name, stream in streams.items() if stream in inventory.places[at[name]].unknown
    ]


def _of_file(
    topology: "model_file.Topology", found: "Sequence[graph.Replica]", unseen: Sequence[tuple[str, str, str]]
) -> "list[graph.Replica]":
    wanted = {(topology.places.get(name, ""), name) for name in (*topology.mirrors, *topology.aggregates)}
    chosen = [item for item in found if (item.place.name, item.name) in wanted]
    seen = {(item.place.name, item.name) for item in chosen} | {(place, name) for place, name, _ in unseen}
    missing = sorted(name for _, name in wanted - seen)
    if missing:
        names = quoted(missing)
        raise BucketNotFound(
            f"In the file but not on the server: {names}", hint="Create them with `kvctl topology apply`"
        )
    return chosen


async def _audit(session: Session, work: Work, patience: timedelta, *, for_repair: bool = False) -> None:
    """Compare all replicas; `for_repair` also collects the repairs that are needed."""
    for replica in work.replicas:
        differences: list[verdict.AuditDifference] = []
        keep = differences.append if for_repair and str(replica.kind) == "aggregate" else lambda _: None
        with session.progress(
            f"Auditing {replica.name}", replica_audit.messages_to_read(replica), unit="keys"
        ) as progress:
            outcomes = await replica_audit.audit(replica, patience, report=keep, advance=progress.advance)
        work.outcomes += outcomes
        if for_repair and (needed := audit_repair.needed(replica, outcomes, differences)) is not None:
            work.repairs.append(needed)


async def _show(session: Session, work: Work, patience: timedelta, *, list_all: bool) -> None:
    if list_all:
        if not (session.options.output or session.terminal.is_terminal):
            session.output = "tsv"  # a listing without end
        await session.stream(audit_views.differences_view(), _differences(session, work, patience))
    else:
        await _audit(session, work, patience)
    say(session, work, list_all=list_all)


async def _differences(session: Session, work: Work, patience: timedelta) -> AsyncIterator[list[dict[str, Any]]]:
    """Yield each difference as soon as it is known."""
    for replica in work.replicas:
        found: list[verdict.AuditDifference] = []
        task = asyncio.ensure_future(replica_audit.audit(replica, patience, report=found.append))
        try:
            while not task.done() or found:
                await asyncio.wait([task], timeout=0.1)
                rows = [audit_views.difference_row(item) for item in found]
                found.clear()
                if rows:
                    yield rows
            work.outcomes += await task
        finally:
            task.cancel()


def say(session: Session, work: Work, *, list_all: bool) -> None:
    """Print the outcomes, and warnings about what the counts do not show."""
    if list_all:
        for outcome in work.outcomes:
            counts = ", ".join(f"{count} {kind}" for kind, count in outcome.counts.items() if count) or "no differences"
            if outcome.error is None:
                session.note(f"`{outcome.replica}` of `{outcome.origin}`: {outcome.keys} keys, {counts}", always=True)
    elif session.output == "table" and not session.options.columns:
        session.report(audit_views.audit_report(work.outcomes))
    else:
        session.show(audit_views.outcomes_view(work.outcomes))
    if work.unseen:
        names = quoted(work.unseen)
        session.warn(f"Streams that may be replicas do not answer and were not audited: {names}")
    for outcome in work.outcomes:
        for warning in _warnings(outcome):
            session.warn(warning)
    unfinished = [f"aggregate `{item.name}`" for item in work.replicas if audit_repair.is_unfinished(item)]
    for what in (*(f"mirror `{left.name}`" for left in work.left), *unfinished):
        session.warn(f"A repair of {what} was interrupted; `--repair` completes it")


def _warnings(outcome: "verdict.AuditOutcome") -> list[str]:
    pair = f"`{outcome.replica}` of `{outcome.origin}`"
    found = []
    if outcome.error is not None:
        hint = f". {outcome.error.hint}" if outcome.error.hint else ""
        found.append(f"{pair} was not audited: {outcome.error.message}{hint}")
    found += [text for text in (outcome.evidence, outcome.hidden, outcome.doubt) if text]
    if outcome.collisions:
        keys = f"{counted(outcome.collisions, 'key')} {'is' if outcome.collisions == 1 else 'are'}"
        found.append(f"{pair}: {keys} also written by others (key-collision); the last write wins")
    return found


async def _repair(session: Session, work: Work, wait_for: timedelta | None, *, yes: bool) -> None:
    """Confirm and repair one replica after the other; a failure is a warning and does not stop the rest."""
    for item in work.repairs:
        session.note(_step(item))
    names = dict.fromkeys([*(left.name for left in work.left), *(item.replica.name for item in work.repairs)])
    await session.confirm(f"Repair {quoted(names)}?", yes=yes)
    limit = arrival.WAIT_FOR if wait_for is None else wait_for
    for left in work.left:
        with session.progress(f"Filling {left.name}", unit="entries") as progress:
            await _try(session, left.name, audit_repair.complete(left, limit, progress.advance))
    for item in work.repairs:
        with session.progress(f"Repairing {item.replica.name}", unit="entries") as progress:
            await _try(session, item.replica.name, audit_repair.run(item, limit, progress.advance))


async def _try(session: Session, name: str, step: Awaitable[None]) -> None:
    try:
        await step
    except KvctlError as error:
        session.warn(f"Could not repair `{name}`: {error.message}")
    else:
        session.note(f"Repaired `{name}`")


def _step(item: "audit_repair.Repair") -> str:
    """Describe a repair for the confirmation prompt."""
    name = item.replica.name
    if str(item.replica.kind) == "mirror":
        return (
            f"Mirror `{name}` will be recreated. A temporary mirror serves reads until it is filled; "
            f"`{name}` itself is unavailable until then"
        )
    refilled, purged = counted(len(item.refilled), "key"), counted(len(item.purged), "key")
    parts = [f"{refilled} to copy from their origins", f"{purged} to remove"]
    if item.overwritten:
        parts.append(f"{counted(len(item.overwritten), 'key')} written here to overwrite")
    return f"Aggregate `{name}`: {', '.join(parts)}"


def exit_code(work: Work) -> int:
    """Choose the exit code: a difference outranks a replica that could not be read."""
    missing = any(not left.exists for left in work.left)
    if missing or any(outcome.consistent is False for outcome in work.outcomes):
        return DRIFT
    return UNREADABLE if work.unseen or any(outcome.consistent is None for outcome in work.outcomes) else 0
