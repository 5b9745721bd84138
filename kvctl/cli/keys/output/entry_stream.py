"""Streaming output of entries in every format, with a fast path for ndjson."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing

import kvctl
from kvctl.cli.app.session import Session
from kvctl.cli.keys.output.entry_rows import Shape
from kvctl.render.view import Row

MARK = {"event": "current"}
"""Event that marks the end of the initial entries."""


async def show_entries(
    session: Session,
    shape: Shape,
    batches: AsyncGenerator[list["kvctl.Entry"], None],
    *,
    endless: bool = False,
    empty: str = "",
    marked: str | None = None,
) -> None:
    """Print batches of entries, and take the next batch when the last one is written.

    With `marked`, an empty batch marks the end of the initial entries: an event for programs, the note for a terminal.
    """
    shape.table = session.output == "table"
    if session.output in (("ndjson", "json") if endless else ("ndjson",)) and not session.terminal.is_terminal:
        await session.stream_bytes(_lines(shape, batches, marked))
    else:
        rows = _rows(session, shape, batches, marked)
        await session.stream(shape.view(empty=empty), rows, endless=endless)


async def _lines(
    shape: Shape, batches: AsyncGenerator[list["kvctl.Entry"], None], marked: str | None
) -> AsyncIterator[bytes]:
    async with aclosing(batches):
        async for batch in batches:
            yield shape.lines(batch) if batch or marked is None else b'{"event": "current"}\n'


async def _rows(
    session: Session, shape: Shape, batches: AsyncGenerator[list["kvctl.Entry"], None], marked: str | None
) -> AsyncIterator[Sequence[Row]]:
    records = session.output == "tsv" and not session.options.columns
    async with aclosing(batches):
        async for batch in batches:
            if batch or marked is None:
                yield shape.records(batch) if records else [shape.row(entry) for entry in batch]
            elif session.output in ("json", "ndjson", "yaml"):
                yield [MARK]
            elif shape.table and marked:
                session.note(marked)
