"""Repairs on real servers: stale mirrors recreated, aggregates refilled, interrupted repairs completed."""

from datetime import timedelta
from typing import Any

import pytest

import kvctl
from kvctl.errors import RefusedError, WaitExpired
from kvctl.jetstream.api import Api
from kvctl.topology.apply.builders import create_aggregate, create_mirror
from kvctl.topology.audit import repair
from kvctl.topology.audit.audit import audit
from kvctl.topology.audit.verdict import AuditDifference
from kvctl.topology.model.origins import Aggregate, Mirror, Origin, is_stand_in, is_temporary
from kvctl.topology.survey import graph
from kvctl.topology.survey.inventory import survey
from tests.support.raw import RawClient
from tests.support.waiting import until
from tests.topology.audited import SHORTLY, audited, one, said
from tests.topology.conftest import source

WRITES = ("STREAM.CREATE.", "STREAM.DELETE.", "STREAM.UPDATE.", "STREAM.PURGE.")


async def repaired(client: kvctl.Client, name: str, limit: timedelta = timedelta(seconds=60)) -> None:
    """Repair as `audit NAME --repair` does: complete interrupted repairs, then repair differences."""
    inventory = await survey({"": client.api})
    for left in repair.stand_ins(inventory, [name]):
        await repair.complete(left, limit)
    for replica in graph.named((await survey({"": client.api})).replicas(), [name]):
        differences: list[AuditDifference] = []
        outcomes = await audit(replica, SHORTLY, report=differences.append)
        if (needed := repair.needed(replica, outcomes, differences)) is not None:
            await repair.run(needed, limit)


async def leftovers(client: kvctl.Client) -> list[str]:
    """Return streams and sources that only repairs create."""
    inventory = await survey({"": client.api})
    return [
        link.info["config"]["name"]
        for link in inventory.links
        if is_stand_in(link.info["config"]) or is_temporary(link.source)
    ]


class Killed(BaseException):
    """The process was killed."""


def kill_after(monkeypatch: pytest.MonkeyPatch, writes: int) -> list[str]:
    """Kill the process after this number of writes to the server; the list has those that were made."""
    call, made = Api.call, []

    async def counted(self: Api, endpoint: str, *args: Any, **settings: Any) -> dict[str, Any]:
        if not endpoint.startswith(WRITES):
            return await call(self, endpoint, *args, **settings)
        if len(made) >= writes:
            raise Killed
        made.append(endpoint)
        return await call(self, endpoint, *args, **settings)

    monkeypatch.setattr(Api, "call", counted)
    return made


class TestMirrors:
    @pytest.fixture
    async def poisoned(self, client, raw, unique):
        """Return a recreated bucket, and a mirror that serves values of the earlier one."""
        bucket, mirror = unique("ORIGIN"), unique("M")
        raw.create_bucket(bucket, {f"k.{number}": b"old" for number in range(5)})
        await create_mirror(client, Mirror(mirror, Origin(bucket), description="near the readers"))
        raw.api(f"STREAM.DELETE.KV_{bucket}")
        raw.create_bucket(bucket, {f"k.{number}": b"new" for number in range(3)})
        return bucket, mirror

    def read(self, raw: RawClient, bucket: str, mirror: str, key: str) -> bytes:
        """Return the mirror's entries of a key."""
        return raw.request(f"$JS.API.DIRECT.GET.{mirror}.$KV.{bucket}.{key}").data

    async def test_stale_mirror_is_recreated(self, client, raw, poisoned):
        bucket, mirror = poisoned
        before = raw.api(f"STREAM.INFO.{mirror}")["config"]
        assert self.read(raw, bucket, mirror, "k.1") == b"old"  # and so it would answer for ever
        await repaired(client, bucket)
        assert self.read(raw, bucket, mirror, "k.1") == b"new"
        assert raw.api(f"STREAM.INFO.{mirror}")["config"] == before
        assert (await one(client, bucket)).consistent
        assert await leftovers(client) == []

    @pytest.mark.guarantee("replicas-5", by="kill")
    @pytest.mark.parametrize("writes", range(6))
    async def test_repair_killed_at_any_write_is_completed_by_the_next(
        self, client, raw, poisoned, writes, monkeypatch
    ):
        bucket, mirror = poisoned
        before = raw.api(f"STREAM.INFO.{mirror}")["config"]
        with monkeypatch.context() as patch:
            made = kill_after(patch, writes)
            try:
                await repaired(client, bucket)
            except Killed:
                assert len(made) == writes
        await repaired(client, mirror)
        assert raw.api(f"STREAM.INFO.{mirror}")["config"] == before
        assert self.read(raw, bucket, mirror, "k.1") == b"new"
        assert (await one(client, bucket)).consistent
        assert await leftovers(client) == []

    async def test_repair_makes_no_other_writes(self, client, poisoned, monkeypatch):
        made = kill_after(monkeypatch, 100)
        await repaired(client, poisoned[0])
        assert len(made) == 5

    @pytest.mark.guarantee("replicas-5")
    async def test_mirror_stays_when_its_replacement_does_not_fill(self, client, raw, poisoned, monkeypatch):
        bucket, mirror = poisoned

        async def never(*_: Any, **__: Any) -> None:
            raise WaitExpired(f"`kvctl-repair-{mirror}` was created, but is not completely filled after 1 s")

        monkeypatch.setattr("kvctl.topology.health.arrival.until_filled", never)
        inventory = await survey({"": client.api})
        (replica,) = graph.named(inventory.replicas(), [bucket])
        with pytest.raises(WaitExpired) as caught:
            await repair.run(repair.Repair(replica))
        assert caught.value.message.startswith(f"Mirror `{mirror}` stays as it is")
        assert self.read(raw, bucket, mirror, "k.1") == b"old"
        assert await leftovers(client) == []


class TestAggregates:
    @pytest.fixture
    async def merged(self, client, raw, unique):
        """Return two buckets in one writable aggregate, below `a` and `b`, with own keys and all kinds of damage."""
        first, second, aggregate = unique("ONE"), unique("OTHER"), unique("AGG")
        for bucket in (first, second):
            raw.create_bucket(bucket, {f"k.{number}": b"v" for number in range(8)})
        origins = (Origin(first, prefix="a"), Origin(second, prefix="b"))
        await create_aggregate(client, Aggregate(aggregate, origins, writable=True))
        raw.put(aggregate, "own", b"mine")
        raw.put(aggregate, "a.k.1", b"wrong")
        raw.put(aggregate, "b.k.2", b"", {"KV-Operation": "DEL"})
        raw.api(f"STREAM.PURGE.KV_{aggregate}", {"filter": f"$KV.{aggregate}.a.k.3"})
        raw.api(f"STREAM.PURGE.KV_{second}", {"filter": f"$KV.{second}.k.4"})
        return first, second, aggregate

    @pytest.mark.guarantee("replicas-5")
    @pytest.mark.parametrize("many", [repair.FULL_REFILL_KEYS, 0])
    async def test_aggregate_is_refilled_and_keeps_its_own_keys(self, client, raw, merged, many, monkeypatch):
        monkeypatch.setattr(repair, "FULL_REFILL_KEYS", many)
        aggregate = merged[2]
        before = raw.api(f"STREAM.INFO.KV_{aggregate}")["config"]
        assert said(await audited(client, aggregate)) == [
            ("missing", "a.k.3", None),
            ("differing", "a.k.1", "local-write"),
            ("missing", "b.k.2", "local-write"),
            ("extra", "b.k.4", None),
        ]
        await repaired(client, aggregate)
        outcomes = await audited(client, aggregate)
        assert said(outcomes) == []
        assert [(item.consistent, item.local) for item in outcomes] == [(True, 1)] * 2
        assert (await client.bucket(aggregate).get("own")).value == b"mine"
        assert raw.api(f"STREAM.INFO.KV_{aggregate}")["config"] == before
        raw.put(merged[0], "k.1", b"later")
        until(lambda: raw.request(f"$JS.API.DIRECT.GET.KV_{aggregate}.$KV.{aggregate}.a.k.1").data == b"later")

    @pytest.mark.guarantee("replicas-5", by="kill")
    @pytest.mark.parametrize("writes", range(4))
    async def test_repair_killed_at_any_write_is_completed_by_the_next(self, client, raw, merged, writes, monkeypatch):
        aggregate = merged[2]
        before = raw.api(f"STREAM.INFO.KV_{aggregate}")["config"]
        with monkeypatch.context() as patch:
            made = kill_after(patch, writes)
            try:
                await repaired(client, aggregate)
            except Killed:
                assert len(made) == writes
        await repaired(client, aggregate)
        assert all(outcome.consistent for outcome in await audited(client, aggregate))
        assert raw.api(f"STREAM.INFO.KV_{aggregate}")["config"] == before

    async def test_aggregate_without_its_first_entries_is_refilled_completely(self, client, raw, replicas, unique):
        """By default a source added late replicates nothing if the aggregate's first entry was removed."""
        first, second, aggregate = unique("ONE"), unique("OTHER"), unique("AGG")
        for bucket in (first, second):
            raw.create_bucket(bucket, {"k": b"v"})
        replicas.aggregate(aggregate, source(first, aggregate, dest="a.>"))
        until(lambda: replicas.info(f"KV_{aggregate}")["state"]["last_seq"] == 1)
        raw.put(first, "k", b"w")
        until(lambda: replicas.info(f"KV_{aggregate}")["state"]["last_seq"] == 2)
        config = replicas.info(f"KV_{aggregate}")["config"]
        config["sources"].append(source(second, aggregate, dest="b.>"))
        raw.api(f"STREAM.UPDATE.KV_{aggregate}", config)
        until(lambda: all(item["active"] >= 0 for item in replicas.info(f"KV_{aggregate}")["sources"]))
        assert said(await audited(client, aggregate)) == [("missing", "b.k", "lagging")]
        await repaired(client, aggregate)
        assert all(outcome.consistent for outcome in await audited(client, aggregate))

    async def test_aggregate_that_denies_purges_is_not_repaired(self, client, raw, unique):
        bucket, aggregate = unique("ORIGIN"), unique("AGG")
        raw.create_bucket(bucket, {"k": b"v"})
        await create_aggregate(client, Aggregate(aggregate, (Origin(bucket),), deny_purge=True))
        raw.api(f"STREAM.PURGE.KV_{bucket}")
        with pytest.raises(RefusedError, match="denies purges"):
            await repaired(client, aggregate)
