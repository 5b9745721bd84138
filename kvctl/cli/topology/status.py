"""`kvctl topology status` and `trace`: replicas and their progress, and the way of a key."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from kvctl import atomic_file
from kvctl.cli.app.command import command
from kvctl.cli.app.options import BucketName, KeyName, argument, bucket_names, one_of, option
from kvctl.cli.app.session import Session
from kvctl.cli.live import Interval, Watch, check_interval, check_live, show_live, while_online
from kvctl.cli.records import STATUS, TRACE, TRACE_TREE
from kvctl.cli.topology.file import OptionalFile, open_places, read_file
from kvctl.cli.topology.graph import painted
from kvctl.errors import KeyNotFound, KvctlError, RequestTimeout, UnreachableError, UsageError
from kvctl.jetstream import api as jetstream_api
from kvctl.kv import names
from kvctl.phrases import counted, joined, quoted
from kvctl.render import cards
from kvctl.render.fields import bar_text, columns, health_sign, health_style, spark_text
from kvctl.render.view import Column, Line, View, document, size_text
from kvctl.topology.health import status as health_status
from kvctl.topology.model import notation
from kvctl.topology.survey import graph as survey_graph
from kvctl.topology.survey import inventory as survey_inventory
from kvctl.topology.views import drawing, live_trace
from kvctl.topology.views import trace as views_trace

_HISTORY = 30
"""Readings that a sparkline shows."""


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
        list[str] | None, argument("NAME", "Replicas, or origins of replicas [default: all]", bucket_names)
    ] = None,
    file: OptionalFile = None,
    watch: Watch = False,
    interval: Interval = None,
    format: Annotated[
        str | None, option("--format", "FORMAT", "`prometheus`: metrics as text", one_of("prometheus"))
    ] = None,
    to: Annotated[str | None, option("--to", "FILE", "File to replace with the metrics [default: stdout]")] = None,
) -> None:
    """Show the state of replicas.

    The state rests on evidence, because servers report a lag of 0 even for a replica that never received anything. An
    `ok` replica has reached its origin's revision, and the entry counts do not contradict that. Counts do not prove
    that every key has its value: use `kvctl topology audit` for that.

    A replica with `missing entries` has reached the revision but holds fewer entries. `behind` and `stalled` replicas
    have not reached it in two checks, a second apart. `silent`, `never connected` and `failing` are the server's
    reports on the connection to the origin. An `unconfirmed` replica may be complete: its origin is not visible or not
    `ok` itself, it holds more entries than a purged or compacted origin, or it does not start from the first entry.

    A `missing origin` does not exist. The replica of a `recreated origin` holds the entries of the earlier stream. The
    servers of an `offline` replica do not answer; a stream of which only the name is known may be a replica. The
    servers of an `offline origin` do not answer. With `no leader`, too few servers of the replica answer. Unknown
    numbers are left empty.

    With --file, the replicas in the file are shown, in its contexts. A replica that does not exist is `absent`.

    With --watch, a terminal shows a live screen. In a pipe, all rows are printed first, then each row that changes; a
    deleted replica is `gone`. The exit code is always 0.

    With --format prometheus, the states and numbers of the replicas are written as metrics, for the textfile collector
    of node_exporter, and whether each bucket answers. --to replaces a file in one step. An unknown number has no
    sample.
    """
    _check_format(session, format, to, watch=watch)
    every = check_interval(watch, interval)
    topology = read_file(session, file) if file is not None else None
    wanted = health_status.ReplicaSelection(names or (), topology)
    apis = await open_places(session, topology) if topology else {"": (await session.client()).api}
    if format is not None:
        await _metrics(session, apis, wanted, to)
        return
    reading = _Reading(apis, wanted, min(every.total_seconds() / 2, 1))
    if watch and session.output == "table" and session.terminal.is_terminal:
        check_live(session)
        await show_live(session, "topology status", reading.report, every)
    elif watch:
        session.output = session.options.output or "tsv"
        await session.stream(_view(session, []), _changes(session, reading, every.total_seconds()), endless=True)
    elif session.output == "table" and not session.options.columns:
        session.report(await reading.report())
    else:
        session.show(_view(session, await reading.rows()))


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


class _Reading:
    """Repeated reading of the replicas' states."""

    def __init__(
        self, apis: "dict[str, jetstream_api.Api]", wanted: "health_status.ReplicaSelection", second_look: float
    ) -> None:
        self.apis = apis
        self._wanted = wanted
        self._second_look = second_look
        self._inventory: survey_graph.Inventory | None = None
        self._lags: dict[tuple[Any, ...], list[int]] = {}

    async def rows(self) -> "list[health_status.Row]":
        """Return the rows now. From the second time on, a named replica may have disappeared."""
        rows = await while_online(self._rows(), self.apis.values())
        self._wanted = self._wanted._replace(must_exist=False)
        return rows

    async def report(self) -> "cards.TextReport":
        """Return a card for each origin, and the answer."""
        rows = await self.rows()
        for row in rows:
            lags = self._lags.setdefault(_identity(row), [])
            lags.append(row["lag"] or 0)
            del lags[:-_HISTORY]
        most = max((row["lag"] or 0 for row in rows), default=0)
        shown = [
            {
                **notation.with_rules_text(row, row["stream"]),
                "part": row["lag"] / most if row["lag"] else None,
                "trend": lags if len(lags := self._lags[_identity(row)]) > 1 and any(lags) else None,
            }
            for row in rows
        ]
        assert self._inventory is not None
        return status_report(shown, self._inventory)

    async def _rows(self) -> "list[health_status.Row]":
        self._inventory = await survey_inventory.survey(self.apis)
        return await health_status.status_of(self._inventory, self._wanted, self._second_look)


async def _changes(
    session: Session, reading: _Reading, interval: float
) -> AsyncGenerator[list["health_status.Row"], None]:
    """Yield the rows that changed at each reading. The first must succeed; a lost connection is reported once."""
    before, trouble = await reading.rows(), ""
    yield before
    while True:
        await asyncio.sleep(interval)
        try:
            rows = await reading.rows()
        except (UnreachableError, RequestTimeout) as error:
            if any(api.connection.closed for api in reading.apis.values()):
                raise
            if not trouble:
                session.warn(f"{error.message}; waiting for the connection")
            trouble = error.message
            continue
        if changed := health_status.changes(before, rows):
            yield changed
        before, trouble = rows, ""


def status_report(rows: "Sequence[health_status.Row]", inventory: "survey_graph.Inventory") -> "cards.TextReport":
    """Return a card for each origin with its replicas, then how many there are, and what is not ok."""
    if not rows:
        return cards.TextReport([], [cards.Sentence("No mirrors or aggregates")])
    origins: dict[tuple[Any, ...], list[health_status.Row]] = {}
    for row in rows:
        origins.setdefault(tuple(row[name] for name in _ORIGIN), []).append(row)
    order = sorted(origins.items(), key=lambda item: [str(part or "") for part in item[0]])
    drawn = [cards.Card(_origin_title(links[0], inventory), [View(columns=_CARD, rows=links)]) for _, links in order]
    return cards.TextReport(drawn, [cards.Sentence(_count(rows, len(origins))), *_sentences(rows)])


def _origin_title(row: "health_status.Row", inventory: "survey_graph.Inventory") -> Line:
    """Return the line of an origin: its name, where it is, and what it holds as far as that is visible."""
    if row["origin"] is None:
        return [("Unknown origin", "bold")]
    place = inventory.places.get(row["origin_context"] or "")
    info = (
        place.infos.get(row["origin_stream"]) if place and not row["origin_domain"] and not row["origin_api"] else None
    )
    where = [
        ("in", "origin_cluster"),
        ("domain", "origin_domain"),
        ("api", "origin_api"),
        ("context", "origin_context"),
    ]
    facts = [" ".join(f"{word} {row[name]}" for word, name in where if row[name])]
    if info is not None:
        state = info["state"]
        facts += [counted(state["messages"], "entry"), size_text(state["bytes"]), f"revision {state['last_seq']:,}"]
    text = " · ".join(filter(None, facts))
    return [(row["origin"], "bold"), (f"  {text}" if text else "", "dim")]


def _count(rows: "Sequence[health_status.Row]", origins: int) -> str:
    """Count origins, replicas, links and states: `2 origins, 3 replicas, 4 links: 3 ok, 1 behind`."""
    replicas = len({(row["context"], row["stream"]) for row in rows})
    links = "" if replicas == len(rows) else f", {counted(len(rows), 'link')}"
    states = Counter(row["state"] for row in rows)
    if set(states) == {"ok"}:
        found = "all ok"
    else:
        found = ", ".join(f"{number} {state}" for state, number in states.most_common())
    return f"{counted(origins, 'origin')}, {counted(replicas, 'replica')}{links}: {found}"


def _sentences(rows: "Sequence[health_status.Row]") -> "Iterator[cards.Sentence]":
    """Yield a sentence for each link that is not ok, and the command that acts on it."""
    troubled = [row for row in rows if row["state"] != "ok"]
    alike: dict[tuple[Any, ...], list[health_status.Row]] = {}
    for row in troubled:
        alike.setdefault(tuple(row[name] for name in ("context", "stream", "state", "evidence")), []).append(row)
    for row, *others in alike.values():  # once for all links of a replica that are in the same trouble
        origins = dict.fromkeys(link["origin"] for link in (row, *others))
        of = f" (from {joined(origins)})" if row["kind"] == "aggregate" and row["origin"] else ""
        text = f"{row['replica']}{of}: {row['evidence'] or row['state']}"
        yield cards.Sentence(text, health_sign(row["state"]), health_style(row["state"]))
    refill = [row["replica"] for row in troubled if row["state"] in _REFILLED]
    if refill:
        yield cards.Sentence(f"Refill: kvctl topology audit {' '.join(dict.fromkeys(refill))} --repair")
    if any(row["state"] not in _REFILLED | _PASSING for row in troubled):
        yield cards.Sentence("Details and remedies: kvctl doctor")


def _identity(row: "health_status.Row") -> tuple[Any, ...]:
    return (str(row["transforms"]), *(row[name] for name in ("context", "stream", *_ORIGIN)))


def _view(session: Session, rows: "list[health_status.Row]") -> View:
    if session.output == "tsv":
        rows = [notation.with_rules_text(row, row["stream"]) for row in rows]
    return View(columns=_COLUMNS, rows=rows, name="replica", empty="No mirrors or aggregates")


_ORIGIN = ("origin", "origin_context", "origin_domain", "origin_api", "origin_stream")
"""Fields that tell origins apart."""
_REFILLED = {"missing entries", "recreated origin"}
"""States that a repair ends."""
_PASSING = {"behind", "unconfirmed"}
"""States that may end by themselves."""
_CARD = columns(
    "replica kind taken lands_as state lag part trend last_seen cluster domain context",
    part=Column("part", "", text=bar_text, bar=True, yields=4),
    trend=Column("trend", "", text=spark_text, bar=True, yields=2),
    cluster=Column("cluster", yields=5),
)
_COLUMNS = columns(
    "replica origin kind state lag last_seen keys lands_as revision origin_revision cluster domain context "
    "origin_domain evidence",
    keys=Column("keys"),
    origin_revision="Origin at",
    evidence=Column("evidence", flex=True),
)


@command(
    "topology trace",
    examples=[
        "kvctl topology trace ORDERS NEW.7",
        "kvctl topology trace EDGE orders.new.7 -o json",
        "kvctl topology trace ORDERS NEW.7 -f topology.yaml",
    ],
    see=["help audit", "topology graph", "topology audit"],
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
        session.paragraphs("".join(painted(line, color=session.terminal.colored) for line in views_trace.text(found)))
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
