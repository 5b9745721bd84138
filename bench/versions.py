"""Versioned buckets beside plain ones: run as `python -m bench.versions WORK URL NAME COUNT`; prints the seconds."""

import asyncio
import json
import random
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager

import kvctl
from kvctl.versions.repositories import Repositories
from kvctl.versions.repository import Repository
from kvctl.versions.store.protocol import Change, Condition
from kvctl.versions.tree.objects import OBJECTS

VALUE = b"v" * 100
TASKS = 16


def key(number: int) -> str:
    """One of a repository's keys, of 22 characters."""
    return f"key.{number:018d}"


# -- writing: the seconds for all of it


async def put(client: kvctl.Client, name: str, count: int) -> float:
    """Staged writes, one after the other."""
    repository = await Repositories(client).open(name)
    return await _by_tasks(1, count, lambda one: repository.put("main", one, VALUE))


async def put_together(client: kvctl.Client, name: str, count: int) -> float:
    """Staged writes of 16 tasks."""
    repository = await Repositories(client).open(name)
    return await _by_tasks(TASKS, count, lambda one: repository.put("main", one, VALUE))


async def create_together(client: kvctl.Client, name: str, count: int) -> float:
    """Staged writes of 16 tasks, each on condition that the key is absent."""
    repository = await Repositories(client).open(name)
    salt = time.time_ns()
    return await _by_tasks(TASKS, count, lambda one: repository.write_if("main", f"{salt}.{one}", VALUE, None))


async def bucket_together(client: kvctl.Client, name: str, count: int) -> float:
    """Puts of 16 tasks into a plain bucket."""
    bucket = client.bucket(name)
    return await _by_tasks(TASKS, count, lambda one: bucket.put(one, VALUE))


async def load(client: kvctl.Client, name: str, count: int) -> float:
    """Many changes, staged a thousand a call."""
    repository = await Repositories(client).open(name)
    begun = time.perf_counter()
    for first in range(0, count, 1000):
        await repository.put_each("main", {key(number): VALUE for number in range(first, min(first + 1000, count))})
    return time.perf_counter() - begun


async def bucket_load(client: kvctl.Client, name: str, count: int) -> float:
    """Many changes put into a plain bucket."""
    begun = time.perf_counter()
    summary = await client.bucket(name).put_many((key(number), VALUE) for number in range(count))
    assert summary.written == count, summary.failed[:3]
    return time.perf_counter() - begun


# -- committing, comparing, reading: the median of several


async def seed(client: kvctl.Client, name: str, count: int) -> float:
    """A repository with one commit of `count` keys; if its name begins with R3, on three replicas."""
    repository = await Repositories(client).create(name, replicas=3 if name.startswith("R3") else 1)
    begun = time.perf_counter()
    if count:
        await repository.record("main", ((key(number), VALUE) for number in range(count)), "base")
    return time.perf_counter() - begun


async def commit(client: kvctl.Client, name: str, count: int) -> float:
    """Commits of `count` changed keys, chosen at random; staging them is not counted."""
    repository = await Repositories(client).open(name)
    base = _base(name)

    async def once() -> float:
        await _stage(repository, base, count)
        begun = time.perf_counter()
        await repository.commit("main", f"{count} keys")
        return time.perf_counter() - begun

    return statistics.median([await once() for _ in range(15 if count == 1 else 5 if count <= 1000 else 1)])


async def diff(client: kvctl.Client, name: str, count: int) -> float:
    """Diff of the last two commits in a fresh session."""

    async def once() -> float:
        repository = await Repositories(client).open(name)
        begun = time.perf_counter()
        assert await repository.diff("main~1", "main")
        return time.perf_counter() - begun

    return statistics.median([await once() for _ in range(count)])


async def merge(client: kvctl.Client, name: str, count: int) -> float:
    """Merges of two branches that changed a key each."""
    repository = await Repositories(client).open(name)
    base = _base(name)
    salt = time.time_ns()

    async def once(number: int) -> float:
        branch = f"b{salt}-{number}"
        await repository.create_branch(branch)
        await _stage(repository, base, 1, branch)
        await repository.commit(branch, "theirs")
        await _stage(repository, base, 1)
        await repository.commit("main", "ours")
        begun = time.perf_counter()
        await repository.merge(branch, "main")
        return time.perf_counter() - begun

    return statistics.median([await once(number) for number in range(count)])


async def get_first(client: kvctl.Client, name: str, count: int) -> float:
    """Gets of a committed key in a fresh session."""
    repository = await Repositories(client).open(name)
    base = _base(name)
    return await _gets(lambda: Repository(repository.store), "main@", base, count)


async def get_again(client: kvctl.Client, name: str, count: int) -> float:
    """Gets of one committed key."""
    repository = await Repositories(client).open(name)
    await repository.get("main@", key(0))
    return await _gets(lambda: repository, "main@", 1, count)


async def get_staged(client: kvctl.Client, name: str, count: int) -> float:
    """Gets of one key at the branch."""
    repository = await Repositories(client).open(name)
    await repository.get("main", key(0))
    return await _gets(lambda: repository, "main", 1, count)


async def bucket_get(client: kvctl.Client, name: str, count: int) -> float:
    """Gets from a plain bucket."""
    bucket = client.bucket(name)
    await bucket.put(key(0), VALUE)
    begun = time.perf_counter()
    for _ in range(count):
        await bucket.get(key(0))
    return (time.perf_counter() - begun) / count


# -- results other than a time: a JSON object


async def written(client: kvctl.Client, name: str, count: int) -> dict[str, int]:
    """Objects and bytes that a commit of one key writes besides its records, the most of some."""
    repository = await Repositories(client).open(name)
    base = _base(name)
    most = (0, 0)
    for _ in range(count):
        await _stage(repository, base, 1)
        with _noting(repository) as found:
            await repository.commit("main", "one key")
        most = max(most, (len(found), sum(found)))
    return {"objects": most[0], "bytes": most[1]}


async def waits(client: kvctl.Client, name: str, count: int) -> dict[str, list[float]]:
    """Waiting times of a writer and a reader, idle and while another process commits: p50, p99, longest."""
    repository = await Repositories(client).open(name)
    base = _base(name)
    await _stage(repository, base, count)
    found: dict[str, list[float]] = {}
    async with _measured(repository, base) as taken:
        await asyncio.sleep(3)
    found |= {f"{what} idle": _spread(times) for what, times in taken.items()}
    url = client.api.connection.url
    async with _measured(repository, base) as taken:
        command = (sys.executable, "-m", "bench.versions", "commit_staged", url, name, "0")
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)
        assert await process.wait() == 0
    return found | {f"{what} beside a commit": _spread(times) for what, times in taken.items()}


async def commit_staged(client: kvctl.Client, name: str, _: int) -> float:
    """Commit the staged changes."""
    repository = await Repositories(client).open(name)
    begun = time.perf_counter()
    await repository.commit("main", "staged")
    return time.perf_counter() - begun


async def longest_wait(client: kvctl.Client, name: str, count: int) -> dict[str, list[float]]:
    """Waiting times of 16 writers."""
    repository = await Repositories(client).open(name)
    times: list[float] = []

    async def one(name: str) -> None:
        begun = time.perf_counter()
        await repository.put("main", name, VALUE)
        times.append(time.perf_counter() - begun)

    await _by_tasks(TASKS, count, one)
    return {"16 writers": _spread(times)}


# -- inside


async def _by_tasks(tasks: int, count: int, work: Callable[[str], Awaitable[object]]) -> float:
    async def one(task: int) -> None:
        for number in range(task, count, tasks):
            await work(key(number))

    begun = time.perf_counter()
    await asyncio.gather(*(one(task) for task in range(tasks)))
    return time.perf_counter() - begun


def _base(name: str) -> int:
    """Return the number of keys a repository was created with, from its name."""
    return int("".join(letter for letter in name if letter.isdigit()))


async def _stage(repository: Repository, base: int, count: int, branch: str = "main") -> None:
    """Change `count` keys, chosen at random, to new values."""
    dice = random.Random(time.time_ns())
    chosen = [key(number) for number in dice.sample(range(base), min(count, base))]
    for first in range(0, len(chosen), 1000):
        await repository.put_each(branch, {one: dice.randbytes(100) for one in chosen[first : first + 1000]})


async def _gets(open_one: Callable[[], Repository], ref: str, base: int, count: int) -> float:
    dice, times = random.Random(1), []
    for _ in range(count):
        repository, wanted = open_one(), key(dice.randrange(base))
        begun = time.perf_counter()
        assert (await repository.get(ref, wanted))[0] is not None
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


@contextmanager
def _noting(repository: Repository) -> Iterator[list[int]]:
    """The sizes of the objects that the repository writes."""
    store, sizes = repository.store, list[int]()
    write, set_many = store.write, store.set_many

    async def noted_write(conditions: Sequence[Condition], changes: Sequence[Change]) -> None:
        sizes.extend(len(change.value or b"") for change in changes if change.partition == OBJECTS)
        await write(conditions, changes)

    async def noted_set_many(
        partition: bytes, values: Mapping[bytes, bytes], *, fence: Condition | None = None
    ) -> None:
        sizes.extend(map(len, values.values() if partition == OBJECTS else ()))
        await set_many(partition, values, fence=fence)

    store.write, store.set_many = noted_write, noted_set_many  # type: ignore[method-assign]
    yield sizes
    store.write, store.set_many = write, set_many  # type: ignore[method-assign]


@asynccontextmanager
async def _measured(repository: Repository, base: int) -> AsyncIterator[dict[str, list[float]]]:
    """Measure the waiting times of a writer and a reader, one after the other, while the block runs."""
    taken: dict[str, list[float]] = {"write": [], "read": []}

    async def again(times: list[float], work: Callable[[str], Awaitable[object]]) -> None:
        dice = random.Random(len(times))
        while True:
            begun = time.perf_counter()
            await work(key(dice.randrange(base)))
            times.append(time.perf_counter() - begun)

    tasks = [
        asyncio.create_task(again(taken["write"], lambda one: repository.put("main", one, VALUE))),
        asyncio.create_task(again(taken["read"], lambda one: repository.get("main", one))),
    ]
    yield taken
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _spread(times: list[float]) -> list[float]:
    """p50, p99 and the longest."""
    times = sorted(times)
    return [times[len(times) // 2], times[len(times) * 99 // 100], times[-1]]


async def _timed(work: str, url: str, name: str, count: str) -> None:
    run: Callable[[kvctl.Client, str, int], Awaitable[object]] = globals()[work]
    async with kvctl.connect(url) as client:
        print(json.dumps(await run(client, name, int(count))))


if __name__ == "__main__":
    asyncio.run(_timed(*sys.argv[1:]))
