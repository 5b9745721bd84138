"""Paged listings of servers, whose offsets shift when items are deleted in the meantime."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

Value = TypeVar("Value")

WALKS = 4
"""Maximum number of passes over the pages until their totals agree."""


async def all_pages(page: Callable[[int], Awaitable[tuple[Mapping[str, Value], int]]]) -> dict[str, Value]:
    """Return the items of all pages; `page` returns the items at an offset, and the total.

    If the total changes between two pages, items that moved to an earlier page may be missing, and all are read again.
    """
    found: dict[str, Value] = {}
    for _ in range(WALKS):
        found, totals = await _walk(page)
        if len(totals) == 1:
            break
    return found


async def _walk(page: Callable[[int], Awaitable[tuple[Mapping[str, Value], int]]]) -> tuple[dict[str, Value], set[int]]:
    found: dict[str, Value] = {}
    totals: set[int] = set()
    offset = 0
    while True:
        batch, total = await page(offset)
        found.update(batch)
        totals.add(total)
        offset += len(batch)
        if not batch or offset >= total:
            return found, totals
