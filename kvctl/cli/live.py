"""`--watch`: a report or a table that is read again and redrawn in place, until `q` or Ctrl-C."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from typing import Annotated, Any, TypeVar

from kvctl.cli.app.options import duration, flag
from kvctl.cli.app.session import Session
from kvctl.errors import RequestTimeout, UnreachableError, UsageError
from kvctl.jetstream import api as jetstream_api
from kvctl.render import cards, live_screen
from kvctl.render.view import View, duration_text

Result = TypeVar("Result")
INTERVAL = timedelta(seconds=2)
_SHORTEST_INTERVAL = timedelta(milliseconds=100)
_CONNECTION_CHECK_S = 0.2
"""Seconds between two checks of the connection."""

Watch = Annotated[bool, flag("--watch -w", "Keep running until `q` or Ctrl-C")]
Interval = Annotated[timedelta | None, duration("--interval", "Time between updates [default: 2s]")]


def check_interval(watch: bool, interval: timedelta | None) -> timedelta:
    """Return the time between updates. Raises UsageError."""
    if interval is not None and (not watch or interval < _SHORTEST_INTERVAL):
        raise UsageError("`--interval` must be at least 100ms" if watch else "`--interval` needs `--watch`")
    return interval or INTERVAL


def check_live(session: Session) -> None:
    """Raise UsageError without a terminal to draw on, or with another format."""
    if session.output != "table" or not session.terminal.is_terminal:
        raise UsageError("A live screen needs a terminal, and no other output format")
    if os.environ.get("TERM", "").lower() in ("dumb", "unknown"):
        raise UsageError("A live screen cannot be drawn on this terminal", hint="Set TERM to the type of the terminal")


async def while_online(work: Awaitable[Result], apis: Iterable["jetstream_api.Api"]) -> Result:
    """Return the work's result. Raises NoServer as soon as a connection is lost, even if the work would retry."""
    task = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait([task], timeout=_CONNECTION_CHECK_S))[0]:
            for api in apis:
                await api.connection.wait_online(_CONNECTION_CHECK_S)
        return task.result()
    finally:
        task.cancel()


async def show_live(
    session: Session, what: str, read: Callable[[], Awaitable["cards.TextReport | View"]], interval: timedelta
) -> None:
    """Draw what `read` returns at each interval; only the first reading must succeed."""
    api = (await session.client()).api
    drawn, trouble, read_at = await read(), "", time.strftime("%H:%M:%S")
    api.connection.waits = None  # a note would stand in the screen
    with live_screen.LiveScreen(session.terminal) as screen:
        while True:
            begun = time.monotonic()
            about = f"{what} · every {duration_text(interval.total_seconds())} · {read_at} · q quits"
            body, answer = _parts(drawn, screen.width)
            warning = [cards.text([(stale_text(trouble, read_at), "yellow")])] if trouble else []
            screen.draw(body, [*answer, "", *warning, cards.text([(about, "dim")])])
            if await _quits(screen, begun + interval.total_seconds()):
                return
            try:
                drawn = await while_online(read(), [api])
                trouble, read_at = "", time.strftime("%H:%M:%S")
            except (UnreachableError, RequestTimeout) as error:
                if api.connection.closed:
                    raise
                trouble = error.message


def stale_text(trouble: str, read_at: str) -> str:
    """Say why a screen is not read, and how old what it shows is."""
    return f"▲ {trouble}: this screen shows the state of {read_at}" if read_at else f"▲ Waiting: {trouble}"


def _parts(drawn: "cards.TextReport | View", width: int) -> tuple[Iterable[Any], Iterable[Any]]:
    """Return what to draw of a report, and of its answer."""
    report = drawn if isinstance(drawn, cards.TextReport) else cards.TextReport([cards.Card((), [drawn])])
    answer = cards.parts(cards.TextReport([], report.closing), width)
    return cards.parts(report._replace(closing=()), width), ["", *answer] if report.cards and report.closing else answer


async def _quits(screen: "live_screen.LiveScreen", until: float) -> bool:
    """Wait for the next reading; return True if `q` is typed before."""
    while (left := until - time.monotonic()) > 0:
        if await screen.key(left) == "q":
            return True
    return False
