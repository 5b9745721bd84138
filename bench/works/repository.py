"""Works on versioned buckets with kvctl's library."""

import asyncio
import random
import sys
import time
from collections.abc import Awaitable, Callable

import worker

import kvctl
from kvctl.versions.repositories import Repositories
from kvctl.versions.repository import Repository

VALUE = b"v" * 100
TASKS = 16


def key(number: int) -> str:
    """One of a repository's keys, of 22 characters."""
    return f"key.{number:018d}"


async def seed(client: kvctl.Client, name: str, count: int, replicas: int) -> None:
    """Create a repository with one commit of `count` keys."""
    repository = await Repositories(client).create(name, replicas=replicas)
    if count:
        await repository.record("main", ((key(number), VALUE) for number in range(count)), "base")


async def put(client: kvctl.Client, name: str, count: int) -> dict[str, float]:
    """Staged writes, one after the other."""
    repository = await Repositories(client).open(name)
    return await _by_tasks(1, count, lambda one: repository.put("main", one, VALUE))


async def put_by_tasks(client: kvctl.Client, name: str, count: int) -> dict[str, float]:
    """Staged writes of 16 tasks."""
    repository = await Repositories(client).open(name)
    return await _by_tasks(TASKS, count, lambda one: repository.put("main", one, VALUE))


async def create_by_tasks(client: kvctl.Client, name: str, count: int) -> dict[str, float]:
    """Staged writes of 16 tasks, each on condition that the key is absent."""
    repository = await Repositories(client).open(name)
    salt = time.time_ns()
    return await _by_tasks(TASKS, count, lambda one: repository.write_if("main", f"{salt}.{one}", VALUE, None))


async def put_each(client: kvctl.Client, name: str, count: int) -> None:
    """Many changes of one call."""
    repository = await Repositories(client).open(name)
    await repository.put_each("main", {key(number): VALUE for number in range(count)})


async def commit(client: kvctl.Client, name: str, base: int, count: int, times: int) -> dict[str, float]:
    """Commits of `count` keys, chosen at random; staging them is not counted."""
    repository = await Repositories(client).open(name)
    clock = worker.Clock()
    for _ in range(times):
        await _stage(repository, base, count)
        with clock.block():
            await repository.commit("main", f"{count} keys")
    return clock.medians()


async def diff(client: kvctl.Client, name: str, times: int) -> dict[str, float]:
    """Diff of the last two commits in a fresh session."""
    clock = worker.Clock()
    for _ in range(times):
        repository = await Repositories(client).open(name)
        with clock.block():
            assert await repository.diff("main~1", "main")
    return clock.medians()


async def merge(client: kvctl.Client, name: str, base: int, times: int) -> dict[str, float]:
    """Merges of two branches that changed a key each."""
    repository = await Repositories(client).open(name)
    salt, clock = time.time_ns(), worker.Clock()
    for number in range(times):
        branch = f"b{salt}-{number}"
        await repository.create_branch(branch)
        await _stage(repository, base, 1, branch)
        await repository.commit(branch, "theirs")
        await _stage(repository, base, 1)
        await repository.commit("main", "ours")
        with clock.block():
            await repository.merge(branch, "main")
    return clock.medians()


async def get(client: kvctl.Client, name: str, base: int, ref: str, fresh: str) -> dict[str, float]:
    """Gets of random keys at a ref; `fresh`: by a new session each."""
    repository = await Repositories(client).open(name)
    dice, clock = random.Random(1), worker.Clock()
    for _ in range(300):
        session = Repository(repository.store) if fresh == "fresh" else repository
        wanted = key(dice.randrange(base))
        with clock.block():
            assert (await session.get(ref, wanted))[0] is not None
    return clock.medians()


async def waits(client: kvctl.Client, name: str, base: int, count: int) -> dict[str, dict[str, float]]:
    """99th percentiles of a writer and a reader, idle and while another process commits `count` keys."""
    repository = await Repositories(client).open(name)
    await _stage(repository, base, count)
    return await worker.waits(
        lambda number: repository.put("main", key(number % base), VALUE),
        lambda number: repository.get("main", key(number % base)),
        "a commit", sys.executable, __file__, "commit_staged", client.api.connection.url, name,
    )  # fmt: skip


async def commit_staged(client: kvctl.Client, name: str) -> None:
    """Commit the staged changes."""
    repository = await Repositories(client).open(name)
    await repository.commit("main", "staged")


async def _by_tasks(tasks: int, count: int, work: Callable[[str], Awaitable[object]]) -> dict[str, float]:
    async def one(task: int) -> None:
        for number in range(task, count, tasks):
            await work(key(number))

    clock = worker.Clock()
    with clock.block():
        await asyncio.gather(*(one(task) for task in range(tasks)))
    return clock.medians()


async def _stage(repository: Repository, base: int, count: int, branch: str = "main") -> None:
    """Change `count` keys, chosen at random, to new values."""
    dice = random.Random(time.time_ns())
    chosen = dice.sample(range(base), min(count, base))
    await repository.put_each(branch, {key(number): dice.randbytes(100) for number in chosen})


if __name__ == "__main__":
    worker.serve(seed, put, put_by_tasks, create_by_tasks, put_each, commit, diff, merge, get, waits, commit_staged)
