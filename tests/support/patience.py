"""Durations that are a contract, measured on machines that stand still for seconds now and then."""

import math
from collections.abc import Awaitable, Callable


async def quickest(measure: Callable[[], Awaitable[float]], below: float, *, tries: int = 10) -> float:
    """The least number of seconds that something takes, tried until it is below a limit; failures are no tries."""
    least = math.inf
    for _ in range(tries):
        least = min(least, await measure())
        if least < below:
            break
    return least
