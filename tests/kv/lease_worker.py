"""A process that takes a lease again and again, and tells from when until when it held it.

python -m tests.kv.lease_worker NAME URL TIMEOUT TTL TAKINGS SEED

Each line of output is a taking as JSON: token, begin, end, whether it was lost. Times are the lease's own clock's.
"""

import asyncio
import json
import random
import sys
from datetime import timedelta

import kvctl
from kvctl import Bucket, Context
from kvctl.errors import KvctlError, LeaseLost
from kvctl.kv.lease import clock

LONGEST_WAIT_S = 30


async def take(bucket: Bucket, owner: str, ttl: float, hold: float) -> None:
    """Hold the lease for a time, or until it is lost. Raises KvctlError when it cannot be had."""
    wait = timedelta(seconds=LONGEST_WAIT_S)
    token = begin = end = 0.0
    lost = False
    try:
        async with bucket.lease("k", owner, ttl=timedelta(seconds=ttl), wait=wait) as lease:
            token, begin = lease.token, clock()
            try:
                await asyncio.sleep(hold)
            finally:
                end = min(clock(), lease.deadline)  # a process that was held up knows by its own clock that it is over
    except LeaseLost:
        lost = True
    print(json.dumps([token, begin, end, lost]), flush=True)


async def main(name: str, url: str, timeout: float, ttl: float, takings: int, seed: int) -> None:
    """Take it so many times."""
    draw = random.Random(seed)
    async with kvctl.connect(Context(url=url, timeout=timedelta(seconds=60))) as client:
        client.connection.timeout = timeout
        bucket = client.bucket("L")
        for _ in range(takings):
            try:
                await take(bucket, name, ttl, draw.choice((0.0, 0.05, 0.3, ttl * 0.7, ttl * 1.5)))
            except KvctlError as error:
                print(f"{name}: {error!r}", file=sys.stderr, flush=True)
            await asyncio.sleep(draw.random() * 0.1)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    asyncio.run(main(*arguments[:2], *map(float, arguments[2:4]), *map(int, arguments[4:])))  # type: ignore[call-arg]
