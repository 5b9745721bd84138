"""`kvctl topology status` and `trace`: replicas and their progress, and the way of a key."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from kvctl import atomic_file
from kvctl.cli.app.command import command
from kvctl.cli.app.options import BucketName, KeyName, bucket_names, duration, one_of
from kvctl.cli.app.session import Session
from kvctl.cli.records import STATUS, TRACE, TRACE_TREE
from kvctl.cli.topology.file import OptionalFile, open_places, read_file
from kvctl.cli.topology.graph import painted
from kvctl.errors import KeyNotFound, KvctlError, RequestTimeout, UnreachableError, UsageError
from kvctl.jetstream import api as jetstream_api
from kvctl.kv import names
from kvctl.phrases import counted, quoted
from kvctl.render import formats, text_table
from kvctl.render.escapes import escape, utf8
from kvctl.render.fields import columns
from kvctl.render.terminal import Screen
from kvctl.render.view import Column, View, document, duration_text
from kvctl.topology.health import status as health_status
from kvctl.topology.model import notation
from kvctl.topology.survey import inventory as survey_inventory
from kvctl.topology.views import drawing, live_trace
from kvctl.topology.views import trace as views_trace

INTERVAL = timedelta(seconds=2)
_SHORTEST_INTERVAL = timedelta(milliseconds=100)
_CONNECTION_CHECK_S = 0.2
"""Seconds between two checks of the connection."""


@command(
    "topology status",
    examples=[
        "kvctl topology status",
        "kvctl topology status ORDERS --watch",
        "kvctl topology status -f topology.yaml -o json | jq '.[] | select(.state != \"ok\")'",
        "kvctl topology status --watch --interval 10s -o ndjson >> replicas.ndjson",
        "kvctl topology status --format prometheus --to /var/lib/node_exporter/kvctl.prom",
    ],
    see=["help topologies", "topology graph", "topology audit", "bucket show"],
    prints=(STATUS,),
    in_pipe="table",
)
async def status(
    session: Session,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME", help="Replicas, or origins of replicas [default: all]", autocompletion=bucket_names
        ),
    ] = None,
    file: OptionalFile = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Keep running until Ctrl-C")] = False,
    interval: Annotated[timedelta | None, duration("--interval", help="Time between updates [default: 2s]")] = None,
    format: Annotated[
        str | None,
        typer.Option(
            "--format", metavar="FORMAT", help="`prometheus`: metrics as text", autocompletion=one_of("prometheus")
        ),
    ] = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="FILE", help="File to replace with the metrics [default: stdout]")
    ] = None,
) -> None:
    """Show the state of replicas.

    The state rests on evidence, because servers report a lag of 0 even for a replica that never received anything. An
    `ok` replica has reached its origin's revision, and the entry counts agree. Counts do not prove that every key has
    its value: use `kvctl topology audit` for that.

    A replica with `missing entries` has reached the revision but holds fewer entries. `behind` and `stalled` replicas
    have not reached it in two checks, a second apart. `silent`, `never connected` and `failing` are the server's
    reports on the connection to the origin. An `unconfirmed` replica may be complete: its origin is not visible from
    here, it holds more entries than a purged or compacted origin, or it does not start from the first entry.

    A `missing origin` does not exist. The replica of a `recreated origin` holds the entries of the earlier stream. The
    servers of an `offline` replica do not answer; a stream of which only the name is known may be a replica. The
    servers of an `offline origin` do not answer. With `no leader`, too few servers of the replica answer. Unknown
    numbers are left empty.

    With --file, the replicas in the file are shown, in its contexts. A replica that does not exist is `absent`.

    With --watch, a terminal shows a live table. In a pipe, all rows are printed first, then each row that changes; a
    deleted replica is `gone`. The exit code is always 0.

    With --format prometheus, the states and numbers of the replicas are written as metrics, for the textfile collector
    of node_exporter, and whether each bucket answers. --to replaces a file in one step. An unknown number has no
    sample.
    """
    _check_format(session, format, to, watch=watch)
    if interval is not None and (not watch or interval < _SHORTEST_INTERVAL):
        raise UsageError("`--interval` must be at least 100ms" if watch else "`--interval` needs `--watch`")
    topology = read_file(session, file) if file is not None else None
    wanted = health_status.ReplicaSelection(names or (), topology)
    apis = await open_places(session, topology) if topology else {"": (await session.client()).api}
    if format is not None:
        await _metrics(session, apis, wanted, to)
        return
    looks = _looks(apis, wanted, (interval or INTERVAL).total_seconds())
    if not watch:
        rows = (await anext(looks)).rows
        session.show(_table(rows) if session.output == "table" else _view(rows))
    elif session.output == "table" and session.terminal.is_terminal:
        await _live(session, looks, interval or INTERVAL)
    else:
        await session.stream(_view([]), _changes(session, looks), endless=True)


def _check_format(session: Session, format: str | None, to: str | None, *, watch: bool) -> None:
    """Raise UsageError for an unknown format, and for options that cannot be combined with it."""
    if format not in (None, "prometheus"):
        raise UsageError(f"`{format}` is not a format of the status", hint="Use `--format prometheus`, or `-o`")
    if to is not None and format is None:
        raise UsageError("`--to` needs `--format prometheus`")
    if format and (watch or session.options.output):
        raise UsageError(f"`--format` and `{'--watch' if watch else '--output'}` cannot be combined")


async def _metrics(
    session: Session, apis: "dict[str, jetstream_api.Api]", wanted: "health_status.ReplicaSelection", to: str | None
) -> None:
    """Write the metrics to stdout, or replace a file with them. Raises KvctlError for a file that cannot be written."""
    inventory = await survey_inventory.survey(apis)
    rows = await health_status.status_of(inventory, wanted)
    linked = {row[name] for row in rows for name in ("replica", "origin")} if wanted.selects else None
    text = health_status.exposition(
        health_status.metrics(rows, inventory, lambda name: linked is None or name in linked)
    ).encode()
    if to is None:
        session.write(text)
        return
    try:
        atomic_file.replace(Path(to), text, mode=atomic_file.PUBLIC)
    except OSError as error:
        raise KvctlError(f"Cannot write `{to}`: {error.strerror}") from None


@dataclass(frozen=True, slots=True)
class _Look:
    rows: "list[health_status.Row]"
    trouble: str = ""
    """Reason why the rows are those of an earlier look."""


async def _looks(
    apis: "dict[str, jetstream_api.Api]", wanted: "health_status.ReplicaSelection", interval: float
) -> AsyncGenerator[_Look, None]:
    """Yield the rows at each interval. The first look must succeed; later ones survive a lost connection."""
    look: _Look | None = None
    while True:
        begun = time.monotonic()
        try:
            look = _Look(await _while_online(apis, health_status.status(apis, wanted, min(interval / 2, 1))))
            wanted = replace(wanted, must_exist=False)
        except (UnreachableError, RequestTimeout) as error:
            if look is None or any(api.connection.closed for api in apis.values()):
                raise
            look = _Look(look.rows, error.message)
        yield look
        await asyncio.sleep(max(begun + interval - time.monotonic(), 0.05))


async def _while_online(
    apis: "dict[str, jetstream_api.Api]", work: Coroutine[Any, Any, list["health_status.Row"]]
) -> list["health_status.Row"]:
    """Return the work's result. Raises NoServer as soon as a connection is lost, even if the work would retry."""
    task = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait([task], timeout=_CONNECTION_CHECK_S))[0]:
            for api in apis.values():
                await api.connection.wait_online(_CONNECTION_CHECK_S)
        return task.result()
    finally:
        task.cancel()


async def _changes(session: Session, looks: AsyncIterator[_Look]) -> AsyncGenerator[list["health_status.Row"], None]:
    """Yield the rows that changed at each look; a lost connection is reported once."""
    before = _Look([])
    async for look in looks:
        if look.trouble and not before.trouble:
            session.warn(f"{look.trouble}; waiting for the connection")
        if changed := health_status.changes(before.rows, look.rows):
            yield changed
        before = look


async def _live(session: Session, looks: AsyncIterator[_Look], interval: timedelta) -> None:
    """Draw the table at every look."""
    look = await anext(looks)
    with Screen(session.terminal) as screen:
        while True:
            table = text_table.table_writer(
                _table(look.rows), width=session.terminal.width, color=session.terminal.colored
            )
            screen.draw(utf8(f"{_headline(look, interval)}\n\n") + formats.render(table, list(table.view.rows)))
            look = await anext(looks)


def _headline(look: _Look, interval: timedelta) -> str:
    not_ok = sum(row["state"] != "ok" for row in look.rows)
    state = f"{not_ok} not ok" if not_ok else "all ok"
    count = f"{counted(len(look.rows), 'replica')}, {state}"
    times = f"every {duration_text(interval.total_seconds())}, {time.strftime('%H:%M:%S')}"
    return f"{count}  ({times})" + (f"  {escape(look.trouble)}" if look.trouble else "")


def _view(rows: "list[health_status.Row]") -> View:
    return View(columns=_COLUMNS, tsv=STATUS.columns, rows=rows, name="replica", empty="No mirrors or aggregates")


def _table(rows: "list[health_status.Row]") -> View:
    """Build the view of a table, with the evidence below each row."""
    return replace(_view(rows), rows=[notation.with_rules_text(row, row["stream"]) for row in rows], below="evidence")


_COLUMNS = columns(
    "replica kind context domain cluster origin origin_domain taken lands_as state lag last_seen revision "
    "origin_revision",
    taken="Keys",
    origin_revision="Origin at",
)


@command(
    "topology trace",
    examples=[
        "kvctl topology trace ORDERS NEW.7",
        "kvctl topology trace EDGE orders.new.7 -o json",
        "kvctl topology trace ORDERS NEW.7 -f topology.yaml",
    ],
    see=["help topologies", "topology graph", "topology audit"],
    prints=(TRACE, TRACE_TREE),
    in_pipe="table",
)
async def trace(session: Session, bucket: BucketName, key: KeyName, file: OptionalFile = None) -> int | None:
    """Show where a key goes through replication, and where it came from.

    Each replica is shown with the key's name there, the filter or map that matches it, its revision, and its state. If
    a replica lacks the key, the state is the reason: `filtered out`, `overwritten` by another origin, another key or a
    client, `expired`, `deleted`, `on its way`, `link down`, `offline`, `stale` after its origin was recreated, or
    `missing` although it has caught up. `kept` is an entry that the origin no longer has, `absent` means that there is
    nothing to replicate, and `unknown` that a side cannot be read.

    Origins are found through the reverse of filters and maps. If several keys land in one place, each is shown; the
    entry itself names the one that it came from.

    Streams are read at their leaders, in this account and in the domains that it replicates from. If no entry is found
    and a stream that may hold one does not answer, the exit code is 5. With --file, the route is computed from the
    file, without a server and without states.
    """
    names.check_bucket(bucket), names.check_key(key)
    found = await _trace(session, bucket, key, file)
    if found.offline:
        session.warn(f"Offline streams that may replicate the key: {quoted(found.offline)}")
    if session.options.output in ("json", "yaml"):
        session.show(document(found.to_json()))
    elif session.output == "table":
        session.write(utf8("".join(painted(line, color=session.terminal.colored) for line in views_trace.text(found))))
    else:
        session.show(View(columns=_TRACE, rows=_rows(found)))
    return None if found.known else UnreachableError.exit_code


async def _trace(session: Session, bucket: str, key: str, file: str | None) -> "views_trace.KeyTrace":
    if file is not None:
        return views_trace.predicted(drawing.of_topology(read_file(session, file)), bucket, key)
    found = await live_trace.trace({"": (await session.client()).api}, bucket, key)
    if not found.exists:
        raise KeyNotFound(
            f"Key `{key}` exists neither in `{bucket}` nor in its origins and replicas",
            hint=f"See where it would go with `kvctl topology export | kvctl topology trace {bucket} {key} -f -`",
        )
    return found


def _rows(found: "views_trace.KeyTrace") -> list[dict[str, Any]]:
    return [
        {"role": role, "depth": depth, "via": via, **item.to_json()}
        for role, depth, via, item in views_trace.flat(found)
    ]


_TRACE = tuple(map(Column, TRACE.fields))
