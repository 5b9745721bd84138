"""Waits for conditions, each until one deadline: what must hold is asserted once, after the wait."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

WITHIN_S = 60.0
"""Seconds after which a condition counts as one that never comes, on machines that stand still for seconds."""
_PAUSE_S = 0.02

Found = TypeVar("Found")


def until(condition: Callable[[], Found], *, what: str = "the condition", within: float = WITHIN_S) -> Found:
    """Return what the condition gives as soon as that is true. Raises AssertionError that names what was awaited."""
    deadline = time.monotonic() + within
    while not (found := condition()):
        _check(deadline, what, within)
        time.sleep(_PAUSE_S)
    return found


async def until_async(
    condition: Callable[[], Awaitable[Found]] | Callable[[], Found],
    *,
    what: str = "the condition",
    within: float = WITHIN_S,
) -> Found:
    """As `until`, for conditions that are functions or coroutine functions, beside other tasks."""
    deadline = time.monotonic() + within
    while not (found := await _result(condition())):
        _check(deadline, what, within)
        await asyncio.sleep(_PAUSE_S)
    return found


async def _result(value: Awaitable[Found] | Found) -> Found:
    return await value if inspect.isawaitable(value) else value


def _check(deadline: float, what: str, within: float) -> None:
    if time.monotonic() > deadline:
        raise AssertionError(f"Not within {within:g} s: {what}")
