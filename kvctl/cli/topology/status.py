"""How replicas stand, once or as it changes."""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvctl.cli.app.command import command, group
from kvctl.cli.app.parameters import bucket_names, duration
from kvctl.cli.app.session import Session
from kvctl.cli.topology.file import OptionalFile, open_places, read_file
from kvctl.errors import RequestTimeout, UnreachableError, UsageError
from kvctl.render.escapes import escape, utf8
from kvctl.render.view import Column, View, duration_text

if TYPE_CHECKING:
    from kvctl.jetstream.api import Api
    from kvctl.topology.discover.status import Row, Wanted

app = group()

INTERVAL = timedelta(seconds=2)
_SHORTEST = timedelta(milliseconds=100)
_GLANCE = 0.2
"""Seconds between two looks at the connection."""


@command(
    app,
    "status",
    examples=[
        "kvctl topology status",
        "kvctl topology status ORDERS --watch",
        "kvctl topology status -f topology.yaml -o json | jq '.[] | select(.state != \"ok\")'",
        "kvctl topology status --watch --interval 10s -o ndjson >> replicas.ndjson",
    ],
    see=["help topologies", "topology graph", "topology audit", "bucket show"],
)
async def status(
    session: Session,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME", help="Replicas, or origins for all of theirs; else all", autocompletion=bucket_names
        ),
    ] = None,
    file: OptionalFile = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on until Ctrl-C")] = False,
    interval: Annotated[timedelta | None, duration("--interval", help="Time between two looks, if not 2s")] = None,
) -> None:
    """Show how replicas stand to their origins.

    The state is judged by evidence, since servers report a lag of 0 for replicas that nothing ever reached. An `ok`
    replica has come as far as its origin, and the counts of both give no reason for doubt. Counts do not prove that
    every key is there, with its value: `kvctl topology audit` does.

    A replica with `missing entries` has come as far and holds fewer. `behind` and `stalled` replicas have not come as
    far; they were looked at twice, a second apart. `silent`, `never connected` and `failing` say what the server heard
    of the origin. An `unconfirmed` replica may hold what its origin does: the origin cannot be seen from here, the
    replica holds more (what a purge or a compaction of the origin leaves), or it does not read from the first entry. A
    `missing origin` does not exist. The replica of a `recreated origin` holds what was there before. An `unreachable`
    one does not answer, or its origin does not; a stream of which only the name is known may be a replica.

    With --file, the replicas of the file are shown, in its contexts; what is not there is `absent`.

    With --watch, a terminal shows a live table. Elsewhere all rows are printed first, then those that change; what
    goes is `gone`. It is a view: the exit code is 0, whatever it shows.
    """
    if interval is not None and (not watch or interval < _SHORTEST):
        raise UsageError("`--interval` is 100ms at least" if watch else "`--interval` needs `--watch`")
    from kvctl.topology.discover.status import Wanted

    topology = read_file(session, file) if file is not None else None
    wanted = Wanted(names or (), topology)
    apis = await open_places(session, topology) if topology else {"": (await session.client()).api}
    looks = _looks(apis, wanted, (interval or INTERVAL).total_seconds())
    if not watch:
        session.show(_view((await anext(looks)).rows))
    elif session.output == "table" and session.terminal.is_terminal:
        await _live(session, looks, interval or INTERVAL)
    else:
        await session.stream(_view([]), _changes(session, looks), endless=True)


@dataclass(frozen=True, slots=True)
class _Look:
    rows: "list[Row]"
    trouble: str = ""
    """Why these are the rows of an earlier look."""


async def _looks(apis: "dict[str, Api]", wanted: "Wanted", interval: float) -> AsyncGenerator[_Look, None]:
    """What is seen each time. The first look has to succeed; later, servers may be away for a while."""
    import asyncio

    from kvctl.topology.discover.status import status as rows_of

    look: _Look | None = None
    while True:
        begun = time.monotonic()
        try:
            look = _Look(await _while_online(apis, rows_of(apis, wanted, min(interval / 2, 1))))
            wanted = replace(wanted, must_exist=False)
        except (UnreachableError, RequestTimeout) as error:
            if look is None or any(api.connection.closed for api in apis.values()):
                raise
            look = _Look(look.rows, error.message)
        yield look
        await asyncio.sleep(max(begun + interval - time.monotonic(), 0.05))


async def _while_online(apis: "dict[str, Api]", work: Coroutine[Any, Any, list["Row"]]) -> list["Row"]:
    """The work's result. Raises NoServer as soon as a connection is lost, however long the work would go on trying."""
    import asyncio

    task = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait([task], timeout=_GLANCE))[0]:
            for api in apis.values():
                await api.connection.wait_online(_GLANCE)
        return task.result()
    finally:
        task.cancel()


async def _changes(session: Session, looks: AsyncIterator[_Look]) -> AsyncGenerator[list["Row"], None]:
    """The rows that are new at each look; that servers are away is said once."""
    from kvctl.topology.discover.status import changes

    before = _Look([])
    async for look in looks:
        if look.trouble and not before.trouble:
            session.warn(f"{look.trouble}; waiting for it")
        if changed := changes(before.rows, look.rows):
            yield changed
        before = look


async def _live(session: Session, looks: AsyncIterator[_Look], interval: timedelta) -> None:
    """The table, drawn anew at every look."""
    from kvctl.render.formats import render
    from kvctl.render.screen import Screen
    from kvctl.render.text_table import TableWriter

    look = await anext(looks)
    with Screen(session.terminal) as screen:
        while True:
            table = TableWriter(_view(look.rows), width=session.terminal.width, color=session.terminal.colored)
            screen.draw(utf8(f"{_headline(look, interval)}\n\n") + render(table, look.rows))
            look = await anext(looks)


def _headline(look: _Look, interval: timedelta) -> str:
    amiss = sum(row["state"] != "ok" for row in look.rows)
    count = f"{len(look.rows)} {'replica' if len(look.rows) == 1 else 'replicas'}, {amiss or 'none'} amiss"
    times = f"every {duration_text(interval.total_seconds())}, {time.strftime('%H:%M:%S')}"
    return f"{count}  ({times})" + (f"  {escape(look.trouble)}" if look.trouble else "")


def _state_style(state: str) -> str:
    return {"ok": "green", "unconfirmed": "yellow", "behind": "yellow"}.get(state, "red")


def _active_text(seconds: float) -> str:
    return "just now" if seconds < 1.5 else f"{duration_text(int(seconds))} ago"


def _rules_text(rules: "list[dict[str, str]]") -> str:
    return ", ".join(rule["keys"] for rule in rules)


def _view(rows: "list[Row]") -> View:
    """The rows; a table has no columns that are empty in all of them."""
    said = {name for row in rows for name, value in row.items() if value not in (None, "", [])}
    if len({(row["replica"], row["origin"]) for row in rows}) == len(rows):
        said.discard("rules")  # nothing to tell apart by them
    columns = [replace(column, table=column.table and (column.key in said or not rows)) for column in _COLUMNS]
    return View(columns=columns, rows=rows, name="replica", empty="No mirrors or aggregates")


_COLUMNS = (
    Column("replica"),
    Column("stream", table=False),
    Column("kind"),
    Column("context"),
    Column("domain"),
    Column("cluster"),
    Column("origin"),
    Column("origin_stream", table=False),
    Column("origin_context", table=False),
    Column("origin_domain"),
    Column("origin_api", table=False),
    Column("origin_cluster", table=False),
    Column("rules", "KEYS", text=_rules_text, flex=True),
    Column("state", style=_state_style),
    Column("lag", right=True),
    Column("active", text=_active_text),
    Column("error", table=False),
    Column("revision", right=True),
    Column("origin_revision", "OF", right=True),
    Column("created", table=False),
    Column("origin_created", table=False),
    Column("evidence", flex=True),
)
