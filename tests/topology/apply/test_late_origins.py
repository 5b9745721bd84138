"""Origins added to an aggregate without its first entry: by default servers start them with their next entries."""

from collections.abc import Callable

import pytest

from kvctl.topology.apply.builders import add_aggregate_origin, create_aggregate
from kvctl.topology.model.origins import Aggregate, Origin
from tests.support.waiting import until
from tests.topology.conftest import source

Names = Callable[..., str]


@pytest.fixture
async def grown(client, raw, replicas, unique):
    """Create a bucket, another one, and an aggregate of the first, whose first entry was overwritten."""
    first, second, aggregate = unique("ONE"), unique("OTHER"), unique("AGG")
    for bucket in (first, second):
        raw.create_bucket(bucket)
        raw.put(bucket, "k", b"v")
    await create_aggregate(client, Aggregate(aggregate, (Origin(first, prefix="a"),)))
    raw.put(first, "k", b"w")
    until(lambda: replicas.info(f"KV_{aggregate}")["state"]["first_seq"] == 2)
    return first, second, aggregate


async def test_entries_of_late_origin_never_arrive_without_start_sequence(raw, replicas, grown):
    _, second, aggregate = grown
    config = replicas.info(f"KV_{aggregate}")["config"]
    config["sources"].append(source(second, aggregate, dest="b.>"))
    assert "error" not in raw.api(f"STREAM.UPDATE.KV_{aggregate}", config)
    raw.put(second, "later", b"v")
    until(lambda: f"$KV.{aggregate}.b.later" in replicas.subjects(f"KV_{aggregate}"))
    assert f"$KV.{aggregate}.b.k" not in replicas.subjects(f"KV_{aggregate}")


async def test_late_origin_added_by_kvctl_arrives_completely(client, replicas, grown):
    first, second, aggregate = grown
    await add_aggregate_origin(client, aggregate, Origin(second, prefix="b"))
    assert replicas.subjects(f"KV_{aggregate}").keys() == {f"$KV.{aggregate}.{key}" for key in ("a.k", "b.k")}
    # What it takes is the same as if it had been there from the beginning.
    await add_aggregate_origin(client, aggregate, Origin(second, prefix="b"))
    await create_aggregate(client, Aggregate(aggregate, (Origin(first, prefix="a"), Origin(second, prefix="b"))))
