"""Checks whose outcome is a matter of time, on machines that stand still for seconds now and then."""

from collections.abc import Awaitable, Callable, Sequence

import pytest

from kvctl.errors import KvctlError

_SLOW = (AssertionError, TimeoutError, KvctlError, pytest.fail.Exception)
"""What a check ends in on a slow machine."""


async def slower(check: Callable[[float], Awaitable[None]], times: Sequence[float]) -> None:
    """Check with the first of these seconds; when that fails with the next, which leave a slow machine more room."""
    for seconds in times[:-1]:
        try:
            return await check(seconds)
        except _SLOW:
            pass
    return await check(times[-1])


def patiently(check: Callable[[float], None], times: Sequence[float]) -> None:
    """As `slower`, for what blocks."""
    for seconds in times[:-1]:
        try:
            return check(seconds)
        except _SLOW:
            pass
    return check(times[-1])
