"""Audits on real servers: agreement, and each kind of damage, made with raw stream JSON, found and named."""

from typing import Any

import pytest

from kvctl.topology.apply.builders import create_aggregate, create_mirror
from kvctl.topology.audit.audit import HERE, unread
from kvctl.topology.audit.verdict import Verdict
from kvctl.topology.model.origins import Aggregate, Mirror, Origin
from tests.support.raw import RawClient
from tests.support.waiting import until
from tests.topology.audited import audited, one, said
from tests.topology.conftest import source


def filled(raw: RawClient, bucket: str, count: int = 20, value: bytes = b"v", **config: Any) -> None:
    """Create a bucket with keys k.0, k.1 and so on."""
    raw.create_bucket(bucket, {f"k.{number}": value for number in range(count)}, **config)


@pytest.fixture
async def mirrored(client, raw, unique):
    """A bucket of 20 keys, some of them deleted, and its mirror."""
    bucket, mirror = unique("ORIGIN"), unique("M")
    filled(raw, bucket)
    await client.bucket(bucket).delete("k.3")
    await client.bucket(bucket).purge("k.4")
    await create_mirror(client, Mirror(mirror, Origin(bucket)))
    return bucket, mirror


class TestMirrors:
    async def test_complete_mirror_agrees(self, client, mirrored):
        outcome = await one(client, mirrored[0])
        assert (outcome.origin, outcome.replica, outcome.kind) == (*mirrored, "mirror")
        assert (outcome.keys, outcome.consistent, outcome.samples, outcome.causes) == (18, True, [], set())

    async def test_mirror_is_audited_by_its_own_name(self, client, mirrored):
        assert (await one(client, mirrored[1])).replica == mirrored[1]

    @pytest.mark.guarantee("replicas-2")
    async def test_key_removed_from_mirror_is_missing(self, client, raw, replicas, unique):
        bucket, mirror = unique("ORIGIN"), unique("M")
        filled(raw, bucket, 5)
        replicas.mirror(mirror, bucket, deny_delete=False)
        until(lambda: replicas.info(mirror)["state"]["messages"] == 5)
        assert raw.api(f"STREAM.MSG.DELETE.{mirror}", {"seq": 3})["success"]
        outcome = await one(client, mirror)
        assert said(outcome) == [("missing", "k.2", None)]
        assert (outcome.samples[0].origin_revision, outcome.samples[0].revision) == (3, None)
        assert outcome.consistent is False

    @pytest.mark.guarantee("reading-10")
    async def test_missing_keys_are_found_after_last_messages_were_removed(self, client, raw, replicas, unique):
        bucket, mirror = unique("ORIGIN"), unique("M")
        filled(raw, bucket, deny_delete=False)
        replicas.mirror(mirror, bucket, deny_delete=False)
        until(lambda: replicas.info(mirror)["state"]["messages"] == 20)
        for stream, sequence in ((mirror, 3), (mirror, 20), (f"KV_{bucket}", 20)):
            assert raw.api(f"STREAM.MSG.DELETE.{stream}", {"seq": sequence})["success"]
        for _ in range(10):  # audits found no key on either side in about half of their runs
            outcome = await one(client, mirror)
            assert (outcome.keys, said(outcome)) == (19, [("missing", "k.2", None)])

    @pytest.mark.guarantee("replicas-2")
    async def test_purge_that_does_not_reach_mirror_leaves_extra_keys(self, client, raw, mirrored):
        bucket, mirror = mirrored
        raw.api(f"STREAM.PURGE.KV_{bucket}", {"filter": f"$KV.{bucket}.k.7"})
        assert said(await one(client, mirror)) == [("extra", "k.7", None)]

    @pytest.mark.guarantee("replicas-2")
    async def test_mirror_of_earlier_stream_instance_is_stale(self, client, raw, mirrored):
        bucket, _ = mirrored
        raw.api(f"STREAM.DELETE.KV_{bucket}")
        filled(raw, bucket, 18, b"new")
        outcome = await one(client, bucket)
        assert outcome.consistent is False
        assert outcome.causes == {"recreated-origin"}
        assert outcome.counts[Verdict.DIFFERING] + outcome.counts[Verdict.STALE] + outcome.counts[Verdict.MISSING] == 18
        assert outcome.counts[Verdict.EXTRA] == 2
        assert {item.cause for item in outcome.samples if item.revision} == {"recreated-origin"}

    async def test_mirror_ahead_of_empty_origin_is_stale_though_no_key_differs(self, client, raw, mirrored):
        bucket, mirror = mirrored
        for key in [key async for key in client.bucket(bucket).keys()]:
            await client.bucket(bucket).delete(key)
        raw.api(f"STREAM.DELETE.KV_{bucket}")
        raw.create_bucket(bucket)
        outcome = await one(client, bucket)
        assert (outcome.differences, outcome.consistent, outcome.causes) == (0, False, {"recreated-origin"})
        assert f"`{mirror}` is at revision" in outcome.evidence

    async def test_filtered_mirror_is_compared_within_its_filter(self, client, raw, replicas, unique):
        bucket, mirror = unique("ORIGIN"), unique("M")
        raw.create_bucket(bucket, dict.fromkeys(("a.1", "a.2", "b.1"), b"v"), allow_direct=False)
        replicas.mirror(mirror, bucket, mirror={"filter_subject": f"$KV.{bucket}.a.>"})
        outcome = await one(client, mirror)
        assert (outcome.keys, outcome.consistent) == (2, True)

    async def test_renaming_mirror_is_compared_under_its_names(self, client, raw, replicas, unique):
        bucket, mirror = unique("ORIGIN"), unique("M")
        filled(raw, bucket, 5)
        rules = [{"src": f"$KV.{bucket}.k.*", "dest": f"$KV.{bucket}.x.{{{{wildcard(1)}}}}.y"}]
        replicas.mirror(mirror, bucket, mirror={"subject_transforms": rules}, deny_delete=False)
        until(lambda: replicas.info(mirror)["state"]["messages"] == 5)
        raw.api(f"STREAM.MSG.DELETE.{mirror}", {"seq": 1})
        raw.api(f"STREAM.PURGE.KV_{bucket}", {"filter": f"$KV.{bucket}.k.1"})
        outcome = await one(client, mirror)
        assert said(outcome) == [("missing", "x.0.y", None), ("extra", "x.1.y", None)]
        assert [item.origin_key for item in outcome.sorted_samples()] == ["k.0", "k.1"]

    async def test_mirror_that_denies_purges_agrees(self, client, raw, unique):
        bucket, mirror = unique("ORIGIN"), unique("M")
        filled(raw, bucket, 5, max_msgs_per_subject=5)
        await create_mirror(client, Mirror(mirror, Origin(bucket), deny_purge=True))
        await client.bucket(bucket).purge("k.1")
        assert (await one(client, mirror)).consistent

    async def test_unconnected_mirror_misses_everything(self, client, raw, replicas, unique):
        bucket, mirror = unique("ORIGIN"), unique("M")
        replicas.mirror(mirror, bucket)
        until(lambda: replicas.info(mirror)["mirror"].get("error"))
        filled(raw, bucket, 15)
        outcome = await one(client, mirror)
        assert (outcome.counts, len(outcome.samples)) == ({Verdict.MISSING: 15}, 10)
        assert outcome.causes == {"lagging"}


class TestAggregates:
    @pytest.fixture
    async def merged(self, client, raw, unique):
        """Two buckets in one aggregate, below `a` and `b`."""
        first, second, aggregate = unique("ONE"), unique("OTHER"), unique("AGG")
        for bucket in (first, second):
            filled(raw, bucket, max_msgs_per_subject=3)
        await client.bucket(first).delete("k.3")
        origins = (Origin(first, prefix="a"), Origin(second, prefix="b"))
        await create_aggregate(client, Aggregate(aggregate, origins, writable=True))
        return first, second, aggregate

    async def test_complete_aggregate_agrees_with_each_origin(self, client, merged):
        outcomes = await audited(client, merged[2])
        assert [(item.origin, item.keys, item.consistent) for item in outcomes] == [
            (merged[0], 19, True),
            (merged[1], 20, True),
        ]
        assert [item.replica for item in await audited(client, merged[0])] == [merged[2]] * 2

    @pytest.mark.guarantee("replicas-2")
    async def test_key_written_in_aggregate_is_its_own_unless_an_origin_has_it(self, client, raw, merged):
        aggregate = merged[2]
        raw.put(aggregate, "own.1", b"v")
        raw.put(aggregate, "a.k.3", b"where the origin has deleted it")
        first, second = await audited(client, aggregate)
        assert (first.consistent, first.local, second.consistent, second.local) == (True, 2, True, 2)
        raw.put(aggregate, "a.k.5", b"wrong")
        raw.put(aggregate, "b.k.6", b"", {"KV-Operation": "DEL"})
        outcomes = await audited(client, aggregate)
        assert said(outcomes) == [("differing", "a.k.5", "local-write"), ("missing", "b.k.6", "local-write")]
        assert outcomes[0].samples[0].origin_key == "k.5"

    async def test_key_that_origin_lost_silently_is_extra(self, client, raw, merged):
        raw.api(f"STREAM.PURGE.KV_{merged[1]}", {"filter": f"$KV.{merged[1]}.k.7"})
        first, second = await audited(client, merged[2])
        assert (first.consistent, said(second)) == (True, [("extra", "b.k.7", None)])

    @pytest.mark.guarantee("replicas-2")
    async def test_key_that_aggregate_lost_is_missing_or_stale(self, client, raw, unique, replicas):
        bucket, aggregate = unique("ORIGIN"), unique("AGG")
        raw.create_bucket(bucket, max_msgs_per_subject=5)
        for key, value in (("k.1", b"1"), ("k.2", b"2"), ("k.1", b"3")):
            raw.put(bucket, key, value)
        replicas.aggregate(aggregate, source(bucket, aggregate), max_msgs_per_subject=5, deny_delete=False)
        until(lambda: replicas.info(f"KV_{aggregate}")["state"]["last_seq"] == 3)
        for sequence in (2, 3):
            assert raw.api(f"STREAM.MSG.DELETE.KV_{aggregate}", {"seq": sequence})["success"]
        outcome = await one(client, aggregate)
        assert said(outcome) == [("missing", "k.2", None), ("stale", "k.1", None)]

    async def test_keys_of_two_origins_are_reported_but_not_as_drift(self, client, raw, replicas, unique):
        first, second, aggregate = unique("ONE"), unique("OTHER"), unique("AGG")
        for bucket in (first, second):
            filled(raw, bucket, 5, bucket.encode())
            raw.put(bucket, f"only.{bucket}", b"v")
        await client.bucket(first).delete("k.2")
        replicas.aggregate(aggregate, source(first, aggregate), source(second, aggregate))
        outcomes = await audited(client, aggregate)
        assert [(item.consistent, item.collisions, item.differences) for item in outcomes] == [(True, 5, 0)] * 2

    async def test_keys_that_become_one_are_reported_but_not_as_drift(self, client, raw, replicas, unique):
        bucket, aggregate = unique("ORIGIN"), unique("AGG")
        raw.create_bucket(bucket, {key: key.encode() for key in ("lon.nails", "nyc.nails", "lon.screws")})
        replicas.aggregate(aggregate, source(bucket, aggregate, "*.*", "{{wildcard(2)}}"))
        (outcome,) = await audited(client, aggregate)
        assert (outcome.consistent, outcome.keys) == (True, 3)

    async def test_deleted_origin_is_an_error_and_others_are_compared(self, client, raw, merged):
        raw.api(f"STREAM.DELETE.KV_{merged[0]}")
        raw.put(merged[2], "b.k.1", b"wrong")
        first, second = await audited(client, merged[2])
        assert (first.consistent, str(first.error)) == (None, f"Origin `{merged[0]}` does not exist")
        assert said(second) == [("differing", "b.k.1", "local-write")]

    async def test_unknown_transform_functions_are_reported(self, client, raw, replicas, unique):
        bucket, aggregate = unique("ORIGIN"), unique("AGG")
        raw.create_bucket(bucket)
        replicas.aggregate(aggregate, source(bucket, aggregate, "*", "{{partition(3,1)}}"))
        (outcome,) = await audited(client, aggregate)
        assert "partition(3,1)" in str(outcome.error)


class TestKeysThatNeverExpire:
    async def test_ttl_that_replica_does_not_allow_leaves_extra_keys(self, client, raw, replicas, unique):
        bucket, mirror, aggregate = unique("ORIGIN"), unique("M"), unique("A")
        raw.create_bucket(bucket, allow_msg_ttl=True)
        replicas.mirror(mirror, bucket)
        replicas.aggregate(aggregate, source(bucket, aggregate))
        raw.put(bucket, "lasts", b"v")
        for number in range(3):
            raw.put(bucket, f"gone.{number}", b"v", {"Nats-TTL": "1s"})
        until(lambda: len(replicas.subjects(mirror)) == len(replicas.subjects(f"KV_{aggregate}")) == 4)
        until(lambda: len(replicas.subjects(f"KV_{bucket}")) == 1)
        for outcome in await audited(client, bucket):
            assert (outcome.counts[Verdict.EXTRA], outcome.expiring, outcome.consistent) == (3, 0, False)
            assert outcome.causes == {"ttl-not-inherited"}


class TestKeysThatNobodyFinds:
    async def test_filtered_mirror_that_answers_all_reads_is_inconsistent(self, client, raw, replicas, unique):
        bucket, mirror = unique("ORIGIN"), unique("M")
        filled(raw, bucket, 5)
        replicas.mirror(mirror, bucket, mirror={"filter_subject": f"$KV.{bucket}.k.1"})
        until(lambda: replicas.subjects(mirror))
        outcome = await one(client, mirror)
        assert (outcome.consistent, outcome.differences, outcome.drifts) == (False, 0, False)
        assert outcome.causes == {"filtered-mirror"}
        assert "not found" in outcome.hidden

    async def test_of_an_aggregate_whose_keys_land_outside_of_its_prefix(self, client, raw, replicas, unique):
        bucket, other, aggregate = unique("ORIGIN"), unique("ORIGIN"), unique("A")
        for name in (bucket, other):
            filled(raw, name, 5)
        replicas.aggregate(aggregate, {"name": f"KV_{bucket}"}, source(other, aggregate))
        until(lambda: len(replicas.subjects(f"KV_{aggregate}")) == 10)
        outcomes = {outcome.origin: outcome for outcome in await audited(client, aggregate)}
        assert (outcomes[bucket].consistent, outcomes[bucket].causes) == (False, {"outside-prefix"})
        assert (outcomes[other].consistent, outcomes[other].causes) == (True, set())


class TestOfNothing:
    def test_a_reading_that_brought_less_than_there_is_proves_nothing(self):
        def info(keys: int, last: int) -> dict[str, Any]:
            return {"config": {"name": "KV_B"}, "state": {"num_subjects": keys, "last_seq": last}}

        assert unread({0: info(5, 5)}, {0: info(5, 5)}, {0: 0}) == [(0, "Could read only 0 of 5 keys of `B`")]
        assert unread({0: info(5, 5)}, {0: info(5, 5)}, {0: 5}) == []
        assert unread({0: info(5, 5)}, {0: info(8, 8)}, {0: 5}) == []  # three have come since
        assert unread({0: info(5, 5)}, {0: info(2, 5)}, {0: 2}) == []  # three have gone since
        assert unread({HERE: info(0, 9)}, {HERE: info(0, 9)}, {HERE: 0}) == []

    async def test_missing_keys_are_found_after_last_entry_expired(self, client, raw, replicas, unique):
        bucket, mirror = unique("ORIGIN"), unique("M")
        filled(raw, bucket, allow_msg_ttl=True)
        replicas.mirror(mirror, bucket, allow_msg_ttl=True)
        raw.put(bucket, "gone", b"v", {"Nats-TTL": "1s"})
        until(lambda: len(replicas.subjects(mirror)) == 21)
        until(lambda: len(replicas.subjects(mirror)) == len(replicas.subjects(f"KV_{bucket}")) == 20)
        raw.api(f"STREAM.PURGE.{mirror}", {"seq": 11})
        for _ in range(10):
            outcome = await one(client, mirror)
            assert (outcome.keys, outcome.counts[Verdict.MISSING], outcome.consistent) == (20, 10, False)
