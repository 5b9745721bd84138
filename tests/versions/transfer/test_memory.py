"""Memory grows with the number of changed keys, not with their values."""

import asyncio
import random
import sys

import pytest

import kvctl
from kvctl.versions.repositories import Repositories

VALUES, MEGABYTE = 200, 1_000_000
HELD = 130 << 10
"""Kilobytes that may be held: the cache of objects, what a listing holds, and values in flight."""

WORK = """
import asyncio, resource, sys
import kvctl
from kvctl.versions.repositories import Repositories
from kvctl.versions.transfer.record_bucket import record_bucket

async def main():
    async with kvctl.connect(sys.argv[1]) as client:
        repository = await Repositories(client).open("LARGE")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if sys.argv[2] == "record":
            await record_bucket(repository, "main", client.bucket("LARGE"), "recorded")
        elif sys.argv[2] == "commit":
            await repository.status("dev")
            await repository.commit("dev", "staged")
        else:
            await repository.merge("dev", "main")
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)

asyncio.run(main())
"""


async def grown(url: str, work: str) -> int:
    """Kilobytes by which the peak memory of a process grows."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WORK, url, work, stdout=asyncio.subprocess.PIPE
    )
    told, _ = await process.communicate()
    assert process.returncode == 0
    return int(told)


@pytest.mark.slow
async def test_recording_committing_and_merging_large_values_holds_few_of_them(server):
    dice = random.Random(1)
    async with kvctl.connect(server.url) as client:
        bucket = await client.create_bucket("LARGE")
        await bucket.put_many((f"k.{number:03}", dice.randbytes(MEGABYTE)) for number in range(VALUES))
        repository = await Repositories(client).create("LARGE")
        assert await grown(server.url, "record") < HELD
        await repository.create_branch("dev", "main")
        for first in range(0, VALUES, 20):
            changes = {f"k.{number:03}": dice.randbytes(MEGABYTE) for number in range(first, first + 20)}
            await repository.put_each("dev", changes)
        assert await grown(server.url, "commit") < HELD
        assert await grown(server.url, "merge") < HELD
        assert await repository.get("main", "k.007") == await repository.get("dev", "k.007")
