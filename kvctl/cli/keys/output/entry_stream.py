"""Prints entries as they come, in every format; in ndjson by the shortest way."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

from kvctl.cli.app.session import Session
from kvctl.cli.keys.output.entry_rows import Shape
from kvctl.render.view import Row

if TYPE_CHECKING:
    from kvctl.kv.entry import Entry

MARK = {"event": "current"}
"""What stands where everything that was there has been printed."""


async def show_entries(
    session: Session,
    shape: Shape,
    batches: AsyncGenerator[list["Entry"], None],
    *,
    endless: bool = False,
    empty: str = "",
    marked: str | None = None,
) -> None:
    """Print batches of entries, the next one when the last is written.

    With `marked`, an empty batch is the end of what was there: an event for programs, in a table that note.
    """
    shape.table = session.output == "table"
    if session.output in (("ndjson", "json") if endless else ("ndjson",)) and not session.terminal.is_terminal:
        await session.stream_bytes(_lines(shape, batches, marked))
    else:
        rows = _rows(session, shape, batches, marked)
        await session.stream(shape.view(empty=empty), rows, endless=endless)


async def _lines(
    shape: Shape, batches: AsyncGenerator[list["Entry"], None], marked: str | None
) -> AsyncIterator[bytes]:
    async with aclosing(batches):
        async for batch in batches:
            yield shape.lines(batch) if batch or marked is None else b'{"event": "current"}\n'


async def _rows(
    session: Session, shape: Shape, batches: AsyncGenerator[list["Entry"], None], marked: str | None
) -> AsyncIterator[Sequence[Row]]:
    async with aclosing(batches):
        async for batch in batches:
            if batch or marked is None:
                yield [shape.row(entry) for entry in batch]
            elif session.output in ("json", "ndjson", "yaml"):
                yield [MARK]
            elif shape.table and marked:
                session.note(marked)
