"""`kvctl top`: buckets, what they hold and how their replicas follow, on a live screen."""

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from kvctl.cli.app.command import command
from kvctl.cli.app.session import Session
from kvctl.cli.bucket import details
from kvctl.cli.bucket.views import KIND
from kvctl.cli.live import Interval, check_interval, check_live, stale_text, while_online
from kvctl.cli.topology.graph import painted
from kvctl.errors import NotFoundError, RequestTimeout, UnreachableError, UsageError
from kvctl.jetstream import api as jetstream_api
from kvctl.kv import names
from kvctl.phrases import counted
from kvctl.render import cards, formats, live_screen, text_table
from kvctl.render.escapes import escape
from kvctl.render.fields import columns, health_sign, health_style, spark_text
from kvctl.render.view import Column, Line, View
from kvctl.topology.health import health as health_health
from kvctl.topology.health import overview
from kvctl.topology.survey import graph
from kvctl.topology.survey import inventory as survey_inventory
from kvctl.topology.views import live_trace
from kvctl.topology.views import trace as views_trace

REQUESTS_PER_SECOND = 10
"""Average number of requests, whatever the number of buckets: with more of them it reads less often."""


@command(
    "top",
    examples=["kvctl top", "kvctl top --interval 10s --context prod"],
    see=["topology status", "bucket ls", "bucket alternates", "doctor"],
)
async def top(session: Session, interval: Interval = None) -> None:
    """Watch all buckets on a live screen.

    Each bucket is shown with its size, its rate of writes, and the replicas that follow it or the origins that it
    follows, with their states as in `kvctl topology status`. Tables and repositories are listed too.

    Keys: arrows choose a bucket, Enter opens its card, `a` shows its alternates, `t` traces a key, `s` changes the
    order, `/` filters by name, Escape goes back, and `q` ends the screen.

    States are read for the buckets on the screen, and kvctl sends at most 10 requests a second on average: with many
    buckets the screen is read less often than --interval. The first line shows the requests of the last reading.
    """
    check_live(session)
    client = await session.client()
    counter = _RequestCounter(client.connection.trace)
    client.connection.trace = counter
    await _Top(session, client.api, counter, check_interval(True, interval).total_seconds()).run()


class _RequestCounter:
    """Hook of a connection that counts its requests."""

    def __init__(self, following: Callable[..., None] | None) -> None:
        self._following = following
        self.number = 0

    def __call__(self, subject: str, seconds: float, note: str = "") -> None:
        self.number += 1
        if self._following is not None:
            self._following(subject, seconds, note)


class _Buckets:
    """Rows of the screen, read again and again: what each stream holds, its rate of writes, and its links' states."""

    def __init__(self, api: "jetstream_api.Api") -> None:
        self.rows: list[dict[str, Any]] = []
        self.states: dict[tuple[Any, ...], health_health.ReplicaHealth] = {}
        self._api = api
        self._before: dict[str, tuple[float, int]] = {}
        self._rates: dict[str, list[float]] = {}

    async def read(self, shown: Callable[[], Sequence[str]], second_look: float) -> None:
        """Read all streams, and the states of the links of those that `shown` names."""
        found = await survey_inventory.survey({"": self._api})
        place = found.places[""]
        self.rows = [
            self._row(place, stream)
            for stream in (*place.infos, *place.unreachable)
            if place.node(stream).kind in _KINDS
        ]
        streams = set(shown())
        links = [link for link in found.links if {link.reader, link.source["name"]} & streams]
        for standing in await health_health.check_health(found.only(links), second_look):
            self.states[_identity(standing.link)] = standing
        known = {_identity(link) for link in found.links}
        self.states = {link: standing for link, standing in self.states.items() if link in known}
        to: dict[str, list[graph.Link]] = {}
        out: dict[str, list[graph.Link]] = {}
        for link in found.links:
            to.setdefault(link.reader, []).append(link)
            out.setdefault(link.source["name"], []).append(link)
        for row in self.rows:
            stream = row["stream"]
            row["links"] = "✗ offline  " * row["offline"] + self._links(out.get(stream, ()), to.get(stream, ()))

    def _row(self, place: "graph.Place", stream: str) -> dict[str, Any]:
        node = place.node(stream)
        known = {"name": node.name, "stream": stream, "kind": node.kind, "offline": node.offline}
        if stream not in place.infos:
            return known | dict.fromkeys(("bytes", "keys", "writes", "trend"))
        state = place.infos[stream]["state"]
        now, last = time.monotonic(), state["last_seq"]
        begun, before = self._before.get(stream, (now, last))
        self._before[stream] = (now, last)
        rates = self._rates.setdefault(stream, [])
        if now > begun:
            rates.append(max(last - before, 0) / (now - begun))
            del rates[:-_HISTORY]
        trend = list(rates) if any(rates) else None
        return {
            **known,
            "bytes": state["bytes"],
            "keys": state.get("num_subjects", 0),
            "writes": rates[-1] if rates else None,
            "trend": trend,
        }

    def _links(self, out: "Sequence[graph.Link]", to: "Sequence[graph.Link]") -> str:
        """Name replicas and origins with the states of the links out and to, `✓` last: `US ▲ 1,204  EU ✓`."""
        replicas = {self._state(link.node.name, link) for link in out}
        origins = {self._state(link.origin_node.name, link) for link in to}
        replicas_text, origins_text = (
            sorted(texts, key=lambda text: ("✓" in text, text)) for texts in (replicas, origins)
        )
        return "  ".join([*replicas_text, *([f"from {', '.join(origins_text)}"] if origins else [])])

    def _state(self, name: str, link: "graph.Link") -> str:
        standing = self.states.get(_identity(link))
        if standing is None:
            return name
        behind = f" {standing.lag:,}" if standing.lag else ""
        return f"{name} {health_sign(str(standing.state))}{behind}"


class _Top:
    """The screen: what is chosen, typed and open, and when it is read again."""

    def __init__(self, session: Session, api: "jetstream_api.Api", counter: _RequestCounter, interval: float) -> None:
        self._session = session
        self._api = api
        self._counter = counter
        self._interval = interval
        self._pause = interval
        self._rate = 0.0
        self._buckets = _Buckets(api)
        self._chosen = 0
        self._sort = "name"
        self._filter = ""
        self._typing = ""
        """What is being typed, `filter` or `key`; empty if keys are commands."""
        self._typed = ""
        self._page: Callable[[], Awaitable[str]] | None = None
        """Reads the page that is open; None for the list."""
        self._text = ""
        self._trouble = ""
        self._read_at = ""
        """Time of the last reading that succeeded."""

    async def run(self) -> None:
        """Draw and read until `q`. Only the first reading must succeed."""
        with live_screen.LiveScreen(self._session.terminal) as screen:
            await self._read(screen)
            due = time.monotonic() + self._pause
            while True:
                screen.draw(self._parts(screen), ["", cards.text([(self._prompt(), "dim")])])
                key = await screen.key(max(due - time.monotonic(), 0.01))
                if key == "q" and not self._typing:
                    return
                if key:
                    await self._heard(key, screen)
                if time.monotonic() >= due:
                    await self._read(screen)
                    due = time.monotonic() + self._pause

    async def _read(self, screen: "live_screen.LiveScreen") -> None:
        first, self._counter.number, begun = not self._buckets.rows, 0, time.monotonic()
        try:
            await while_online(self._renewed(screen), [self._api])
            self._trouble, self._read_at = "", time.strftime("%H:%M:%S")
        except (UnreachableError, RequestTimeout) as error:
            if first or self._api.connection.closed:
                raise
            self._trouble = error.message
        self._pause = max(self._interval, self._counter.number / REQUESTS_PER_SECOND)
        self._rate = self._counter.number / max(self._pause, time.monotonic() - begun)

    async def _renewed(self, screen: "live_screen.LiveScreen") -> None:
        """Read the rows, and the page that is open."""
        await self._buckets.read(lambda: [row["stream"] for row in self._window(screen)], min(self._interval / 2, 1))
        if self._page is not None:
            self._text = await self._page()

    def _visible(self) -> list[dict[str, Any]]:
        """Return the rows that the filter lets through, in order."""
        wanted = self._typed if self._typing == "filter" else self._filter
        rows = [row for row in self._buckets.rows if wanted.lower() in row["name"].lower()]
        return sorted(rows, key=_SORTS[self._sort])

    def _window(self, screen: "live_screen.LiveScreen") -> list[dict[str, Any]]:
        """Return the rows that fit on the screen, around the chosen one, which is marked."""
        rows = self._visible()
        self._chosen = min(self._chosen, max(len(rows) - 1, 0))
        room = max(screen.height - 8, 3)
        begin = max(min(self._chosen - room // 2, len(rows) - room), 0)
        shown = enumerate(rows[begin : begin + room], begin)
        return [{**row, "mark": "▸" if number == self._chosen else None} for number, row in shown]

    def _parts(self, screen: "live_screen.LiveScreen") -> Iterator[Any]:
        yield cards.text([*self._headline(), (f"   {self._read_at}", "dim")])
        if self._trouble:
            yield cards.text([(stale_text(self._trouble, self._read_at), "yellow")])
        yield ""
        if self._page is not None:
            yield cards.painted_text(self._text)
        else:
            yield from cards.parts(listed_report(self._window(screen)), screen.width)

    def _headline(self) -> Line:
        states = [str(standing.state) for standing in self._buckets.states.values()]
        styles = {health_sign(state): health_style(state) for state in states}
        server = self._api.connection.server_info.get("server_name") or ""
        where = f"{self._session.context.name} ({server})" if self._session.context.name else server
        buckets = counted(len(self._buckets.rows), "bucket")
        links = Counter(map(health_sign, states))
        found = [(f"  {sign} {number}", styles[sign]) for sign, number in sorted(links.items())]
        return [
            ("kvctl top", "bold"),
            (f" · {where} · {buckets}", ""),
            *found,
            (f" · {counted(round(self._rate), 'request')}/s · by {self._sort}", "dim"),
        ]

    def _prompt(self) -> str:
        if self._typing:
            return f"{self._typing}: {self._typed}▏  enter accept  escape cancel"
        if self._page is not None:
            return "escape back  q quit"
        return f"{KEYS}  [{self._filter}]" if self._filter else KEYS

    async def _heard(self, key: str, screen: "live_screen.LiveScreen") -> None:
        """Act on a key."""
        if self._typing:
            await self._type(key)
        elif key == "escape":
            self._page, self._filter = None, self._filter if self._page else ""
        elif self._page is None:
            await self._command(key, screen)

    async def _command(self, key: str, screen: "live_screen.LiveScreen") -> None:
        rows = self._visible()
        if key in ("up", "down"):
            self._chosen = min(max(self._chosen + (1 if key == "down" else -1), 0), max(len(rows) - 1, 0))
        elif key == "s":
            orders = list(_SORTS)
            self._sort = orders[(orders.index(self._sort) + 1) % len(orders)]
        elif key == "/":
            self._typing, self._typed = "filter", self._filter
        elif key == "t" and rows:
            self._typing, self._typed = "key", ""
        elif key in ("enter", "a") and rows:
            await self._open(lambda name: self._inspected(name, screen.width, alternates=key == "a"))

    async def _type(self, key: str) -> None:
        if key == "backspace":
            self._typed = self._typed[:-1]
        elif key == "escape":
            self._typing = ""
        elif key == "enter":
            typing, self._typing = self._typing, ""
            if typing == "filter":
                self._filter = self._typed
            elif self._typed:
                typed = self._typed
                await self._open(lambda name: self._trace(name, typed))
        elif len(key) == 1:
            self._typed += key

    async def _open(self, page: Callable[[str], Awaitable[str]]) -> None:
        """Open a page on the chosen bucket; an error is its text."""
        name = self._visible()[self._chosen]["name"]

        async def read() -> str:
            try:
                return await page(name)
            except (NotFoundError, UsageError) as error:
                return escape(error.message)

        self._page = read
        self._text = await read()

    async def _inspected(self, name: str, width: int, *, alternates: bool) -> str:
        found, color = await overview.inspect(self._api, name), self._session.terminal.colored
        if alternates:
            return cards.report_text(details.alternates_report(name, found.reads), width=width, color=color)
        view = details.bucket_view(found)
        return formats.render(text_table.table_writer(view, width=width, color=color), view.rows).decode()

    async def _trace(self, name: str, key: str) -> str:
        names.check_key(key)
        found = await live_trace.trace({"": self._api}, name, key)
        return "".join(painted(line, color=self._session.terminal.colored) for line in views_trace.text(found))


def listed_report(rows: Sequence[dict[str, Any]]) -> "cards.TextReport":
    """Return the list of buckets; `mark` is the sign of the chosen one."""
    return cards.TextReport([cards.Card(body=[View(columns=_COLUMNS, rows=rows)])])


def _identity(link: "graph.Link") -> tuple[Any, ...]:
    return link.at, link.source["name"], str(link.source)


def _rate_text(rate: float) -> str:
    return f"{rate:,.1f}" if rate else "0"


_HISTORY = 8
"""Readings that a sparkline shows."""
_KINDS = ("bucket", "mirror", "aggregate", "table", "repository", "unknown")
"""Kinds of streams that are listed; `unknown` are those that do not answer, and of which only the name is known."""
KEYS = "↑↓ choose  enter open  a alternates  t trace a key  s sort  / filter  q quit"
_SORTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "name": lambda row: row["name"],
    "size": lambda row: -(row["bytes"] or 0),
    "writes": lambda row: -(row["writes"] or 0),
    "keys": lambda row: -(row["keys"] or 0),
}
_COLUMNS = columns(
    "mark name kind keys bytes writes trend links",
    mark=Column("mark", "", style="cyan", keep=True),
    name=Column("name", "Bucket", style="bold", keep=True),
    kind=KIND,
    writes=Column("writes", "Writes/s", text=_rate_text, right=True, yields=3),
    trend=Column("trend", "", text=spark_text, bar=True, yields=4),
    links=Column("links", flex=True, keep=True),
)
