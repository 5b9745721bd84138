"""`kvctl top`: buckets, what they hold and how their replicas follow, on a live screen."""

import asyncio
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
from kvctl.errors import KvctlError, NotFoundError, RequestTimeout, UnreachableError, UsageError
from kvctl.jetstream import api as jetstream_api
from kvctl.kv import names
from kvctl.phrases import counted
from kvctl.render import cards, formats, live_screen, text_table
from kvctl.render.escapes import escape
from kvctl.render.fields import columns, health_sign, health_style, spark_text
from kvctl.render.view import Column, Line, View
from kvctl.render.widths import cut_middle
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
        self.links = 0
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
        self.links, known = len(found.links), {_identity(link) for link in found.links}
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
            return known | dict.fromkeys(("bytes", "values", "writes", "trend"))
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
            "values": state["messages"],
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
        self._awaited = ""
        """What the reading waits for, if that takes long."""
        self._reading: asyncio.Future[None] | None = None
        self._opening: asyncio.Future[str] | None = None
        """First reading of the page that is open."""
        self._changed = False
        """True if the screen must be drawn."""
        self._read_at = ""
        """Time of the last reading that succeeded."""

    async def run(self) -> None:
        """Draw and read until `q`, which is heard while an answer is awaited. Only the first reading must succeed."""
        self._api.connection.waits = self._wait
        with live_screen.LiveScreen(self._session.terminal) as screen:
            due = time.monotonic()
            try:
                while True:
                    if self._reading is None and time.monotonic() >= due:
                        self._reading = asyncio.ensure_future(self._read(screen))
                    if self._changed:
                        self._changed = False
                        screen.draw(self._parts(screen), ["", cards.text([(self._prompt(screen.width), "dim")])])
                    at_work = self._reading is not None or self._opening is not None
                    key = await screen.key(_TICK_S if at_work else max(due - time.monotonic(), 0.01))
                    if key == "q" and not self._typing:
                        return
                    if key:
                        self._heard(key, screen)
                        self._changed = True
                    self._show_opened()
                    if self._reading is not None and self._reading.done():
                        self._reading.result()
                        self._reading, self._awaited, self._changed = None, "", True
                        due = time.monotonic() + self._pause
            finally:
                if self._reading is not None:
                    self._reading.cancel()
                if self._opening is not None:
                    self._opening.cancel()

    def _wait(self, reason: str) -> None:
        """Show what the reading waits for."""
        self._awaited, self._changed = reason, True

    def _show_opened(self) -> None:
        """Show the page that was opened, once it is read."""
        if self._opening is not None and self._opening.done():
            self._text, self._opening, self._changed = self._opening.result(), None, True

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
        if (page := self._page) is not None and self._opening is None:
            text = await page()
            if page is self._page:
                self._text = text

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
        yield cards.text(self._headline(screen.width))
        if trouble := self._trouble or self._awaited:
            yield cards.text([(stale_text(trouble, self._read_at), "yellow")])
        yield ""
        if self._page is not None:
            yield cards.painted_text(self._text)
        else:
            yield from cards.parts(listed_report(self._window(screen), by=self._sort), screen.width)

    def _headline(self, width: int) -> Line:
        """Return the first line; what does not fit is left out, the server's name last."""
        states = [str(standing.state) for standing in self._buckets.states.values()]
        styles = {health_sign(state): health_style(state) for state in states}
        server = self._api.connection.server_info.get("server_name") or ""
        where = f"{self._session.context.name} ({server})" if self._session.context.name else server
        links = Counter(map(health_sign, states))
        return headline(
            width,
            where,
            len(self._buckets.rows),
            self._buckets.links,
            [(f" {sign} {number}", styles[sign]) for sign, number in sorted(links.items())],
            self._rate,
            self._read_at,
        )

    def _prompt(self, width: int) -> str:
        if self._typing:
            ways = "enter accept  escape cancel"
            return f"{cut_middle(f'{self._typing}: {self._typed}', width - len(ways) - 3)}▏  {ways}"
        if self._page is not None:
            return "escape back  q quit"
        if not self._filter:
            return fitting_keys(KEYS, width)
        ways = "escape all  / filter  q quit"
        return f"{cut_middle(f'[{self._filter}]', width - len(ways) - 2)}  {ways}"

    def _heard(self, key: str, screen: "live_screen.LiveScreen") -> None:
        """Act on a key."""
        if self._typing:
            self._type(key)
        elif key == "escape":
            self._page, self._filter = None, self._filter if self._page else ""
        elif self._page is None:
            self._command(key, screen)

    def _command(self, key: str, screen: "live_screen.LiveScreen") -> None:
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
            self._open(lambda name: self._inspected(name, screen.width, alternates=key == "a"))

    def _type(self, key: str) -> None:
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
                self._open(lambda name: self._trace(name, typed))
        elif len(key) == 1:
            self._typed += key

    def _open(self, page: Callable[[str], Awaitable[str]]) -> None:
        """Open a page on the chosen bucket; an error is its text until it can be read."""
        name = self._visible()[self._chosen]["name"]

        async def read() -> str:
            try:
                return await page(name)
            except (NotFoundError, UsageError) as error:
                return escape(error.message)

        async def begin() -> str:
            try:
                return await while_online(read(), [self._api])
            except KvctlError as error:
                return escape(error.message)

        if self._opening is not None:
            self._opening.cancel()
        self._page, self._text = read, f"Reading {escape(name)} …"
        self._opening = asyncio.ensure_future(begin())

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


def headline(
    width: int, where: str, buckets: int, links: int, states: Line, requests_per_second: float, read_at: str
) -> Line:
    """Return the first line, without the rate of requests and the place if they do not fit; `states` are those read."""
    begin, count = [("kvctl top", "bold")], [(f" · {counted(buckets, 'bucket')}", "")]
    if links:
        count += [(f" · {counted(links, 'link')}", ""), *states]
    place, rate = [(f" · {where}", "")], [(f" · {counted(round(requests_per_second), 'request')}/s", "dim")]
    end = [(f"   {read_at}", "dim")]
    lines = ([*begin, *place, *count, *rate, *end], [*begin, *place, *count, *end], [*begin, *count, *end])
    return next((line for line in lines if sum(len(text) for text, _ in line) <= width), lines[-1])


def fitting_keys(keys: str, width: int) -> str:
    """Return the keys that fit, the last one always: `↑↓ choose  enter open  q quit`."""
    *some, last = keys.split("  ")
    while some and len("  ".join([*some, last])) > width:
        some.pop()
    return "  ".join([*some, last])


def listed_report(rows: Sequence[dict[str, Any]], by: str = "name") -> "cards.TextReport":
    """Return the list of buckets in an order; `mark` is the sign of the chosen one."""
    sorted_by = {"size": "bytes", "entries": "values"}.get(by, by)
    shown = [column._replace(title=f"{column.heading} ▾") if column.key == sorted_by else column for column in _COLUMNS]
    return cards.TextReport([cards.Card(body=[View(columns=shown, rows=rows)])])


def _identity(link: "graph.Link") -> tuple[Any, ...]:
    return link.at, link.source["name"], str(link.source)


def _rate_text(rate: float) -> str:
    return f"{rate:,.1f}" if rate else "0"


_TICK_S = 0.1
"""Seconds between two looks at an answer that is awaited."""
_HISTORY = 8
"""Readings that a sparkline shows."""
_KINDS = ("bucket", "mirror", "aggregate", "table", "repository", "unknown")
"""Kinds of streams that are listed; `unknown` are those that do not answer, and of which only the name is known."""
KEYS = "↑↓ choose  enter open  a alternates  t trace a key  s sort  / filter  q quit"
_SORTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "name": lambda row: row["name"],
    "size": lambda row: -(row["bytes"] or 0),
    "writes": lambda row: -(row["writes"] or 0),
    "entries": lambda row: -(row["values"] or 0),
}
_COLUMNS = columns(
    "mark name kind values bytes writes trend links",
    mark=Column("mark", "", style="cyan", keep=True),
    name=Column("name", "Bucket", style="bold", keep=True),
    kind=KIND,
    writes=Column("writes", "Writes/s", text=_rate_text, right=True, yields=3),
    trend=Column("trend", "", text=spark_text, bar=True, yields=4),
    links=Column("links", flex=True, keep=True),
)
