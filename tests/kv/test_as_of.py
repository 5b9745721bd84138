"""A bucket as it was: exactly, or a refusal that names what is lost."""

import asyncio
import random

import pytest

from kvctl import Bucket, Client
from kvctl.errors import HistoryLost
from kvctl.kv.as_of import Past
from kvctl.kv.moment import Moment
from tests.raw import RawClient

State = dict[str, bytes]


async def state(past: Past, *filters: str) -> State:
    return {entry.key: entry.value async for entry in past.entries(*filters)}


class Oracle:
    """A bucket under random operations, with every state that it had, and what its stream holds by the issue's rule."""

    def __init__(self, bucket: Bucket, raw: RawClient, history: int, keys: int, seed: int) -> None:
        self.bucket, self.raw, self.history = bucket, raw, history
        self.keys = [f"k.{number}" for number in range(keys)]
        self.random = random.Random(seed)
        self.states: list[State] = [{}]
        """By revision."""
        self.held: dict[str, list[tuple[int, str]]] = {key: [] for key in self.keys}
        """Revision and operation, oldest first."""

    async def step(self) -> None:
        key = self.random.choice(self.keys)
        kind = self.random.choices(("PUT", "DEL", "PURGE"), (6, 2, 1))[0]
        value = self.random.randbytes(3) if kind == "PUT" else b""
        headers = {} if kind == "PUT" else {"KV-Operation": kind}
        if kind == "PURGE":
            headers["Nats-Rollup"] = "sub"
            self.held[key] = []
        revision = await asyncio.to_thread(self.raw.put, self.bucket.name, key, value, headers)
        assert revision == len(self.states)
        self.held[key] = [*self.held[key], (revision, kind)][-self.history :]
        after = dict(self.states[-1])
        after.pop(key, None)
        self.states.append(after | {key: value} if kind == "PUT" else after)

    def lost(self, revision: int) -> set[str]:
        """The keys whose state at the revision is lost."""
        return {
            key
            for key, held in self.held.items()
            if held and held[0][0] > revision and (len(held) == self.history or held[0][1] == "PURGE")
        }

    async def check(self, revision: int, past: Past) -> None:
        """The whole bucket, and each key alone: as the oracle says or refused, and refused for these keys only."""
        lost = self.lost(revision)
        if lost:
            with pytest.raises(HistoryLost) as caught:
                await state(past)
            assert set(caught.value.keys) == lost
        else:
            assert await state(past) == self.states[revision]
        key = self.random.choice(self.keys)
        if key in lost:
            with pytest.raises(HistoryLost, match=rf"`{key}` was at"):
                await past.get(key)
        else:
            [entry] = await past.get_many([key])
            assert (entry and entry.value) == self.states[revision].get(key)


@pytest.mark.parametrize(("history", "keys", "steps"), [(1, 4, 15), (2, 3, 25), (5, 4, 40), (64, 6, 40)])
@pytest.mark.parametrize("seed", range(2))
async def test_every_moment_is_right_or_honestly_lost(
    client: Client, raw: RawClient, bucket_name: str, history: int, keys: int, steps: int, seed: int
) -> None:
    bucket = await client.create_bucket(bucket_name, history=history)
    oracle = Oracle(bucket, raw, history, keys, seed)
    for _ in range(steps):
        await oracle.step()
    times = {entry.revision: entry.created_ns async for entry in bucket.history()}
    for revision in range(1, steps + 1):
        past = await bucket.as_of(revision)
        assert past.revision == revision
        await oracle.check(revision, past)
        if revision in times:
            past = await bucket.as_of(Moment(time_ns=times[revision]))
            assert past.revision >= revision
            assert not any(revision < other <= past.revision for other in times)
            await oracle.check(revision, past)
