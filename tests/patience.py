"""Checks whose outcome is a matter of time, on machines that stand still for seconds now and then.

What must never happen is no matter of time: a check says so with `pytest.fail`, after which nothing is tried again.
"""

import math
import warnings
from collections.abc import Awaitable, Callable, Sequence

from kvctl.errors import KvctlError

_SLOW = (AssertionError, TimeoutError, KvctlError)
"""What a check ends in on a slow machine."""


async def slower(check: Callable[[float], Awaitable[None]], times: Sequence[float]) -> None:
    """Check with the first of these seconds; when that fails with the next, which leave a slow machine more room."""
    for seconds in times[:-1]:
        try:
            return await check(seconds)
        except _SLOW as error:
            _tell(seconds, error)
    return await check(times[-1])


def patiently(check: Callable[[float], None], times: Sequence[float]) -> None:
    """As `slower`, for what blocks."""
    for seconds in times[:-1]:
        try:
            return check(seconds)
        except _SLOW as error:
            _tell(seconds, error)
    return check(times[-1])


async def quickest(measure: Callable[[], Awaitable[float]], below: float, *, tries: int = 10) -> float:
    """The least number of seconds that something takes, tried until it is below a limit; failures are no tries."""
    least = math.inf
    for _ in range(tries):
        least = min(least, await measure())
        if least < below:
            break
    return least


def _tell(seconds: float, error: Exception) -> None:
    warnings.warn(f"With {seconds:g} s it failed, and was tried with more: {error!r}"[:500], stacklevel=3)
