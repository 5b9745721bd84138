"""Random aggregates on a real server: every stored key lands exactly where the pure transforms predict."""

import random
from itertools import permutations

import pytest

from kvctl.errors import HazardRefused, UsageError
from kvctl.topology.apply.builders import create_aggregate
from kvctl.topology.hazards import hazards
from kvctl.topology.model.origins import Aggregate, Origin
from kvctl.topology.model.subjects import Transform, land

TOKENS = ("a", "b", "NEW", "x-1")


def some_filter(dice: random.Random) -> str:
    tokens = [dice.choice([*TOKENS, "*"]) for _ in range(dice.randint(1, 2))]
    return ".".join([*tokens, *([">"] if dice.random() < 0.5 else [])])


def some_map(dice: random.Random) -> tuple[str, str]:
    source = some_filter(dice)
    places = [f"${number}" for number in range(1, source.split(".").count("*") + 1)]
    dice.shuffle(places)
    tail = [">"] if source.endswith(">") else []
    return source, ".".join([dice.choice(TOKENS), *places, *tail])


def some_origin(dice: random.Random, bucket: str) -> Origin:
    shape = dice.randrange(4)
    prefix = dice.choice(["", "", "p", "p.q"])
    if shape == 0:
        return Origin(bucket, prefix=prefix)
    if shape == 1:
        return Origin(bucket, maps=tuple(some_map(dice) for _ in range(dice.randint(1, 2))), prefix=prefix)
    return Origin(bucket, keys=tuple(some_filter(dice) for _ in range(dice.randint(1, 2))), prefix=prefix)


def nested(origin: Origin) -> bool:
    """Return whether one of its filters lies within another."""
    sources = [Transform(source, "") for source in (*origin.keys, *(source for source, _ in origin.maps))]
    return any(one.covers(other.src) for one, other in permutations(sources, 2))


@pytest.mark.parametrize("seed", range(12))
async def test_random_topology_lands_every_key_where_predicted(client, raw, replicas, unique, seed):
    dice = random.Random(seed)
    buckets, target = [unique() for _ in range(dice.randint(1, 3))], unique("A")
    stored = {name: {".".join(dice.choices(TOKENS, k=dice.randint(1, 4))) for _ in range(30)} for name in buckets}
    for name, keys in stored.items():
        raw.create_bucket(name, dict.fromkeys(keys, b"v"))
    origins = tuple(some_origin(dice, name) for name in buckets)
    aggregate = Aggregate(target, origins)
    if any(nested(origin) for origin in origins):
        with pytest.raises(UsageError, match="match the same keys"):  # servers would refuse it, too
            await create_aggregate(client, aggregate)
        return
    rules = {origin.name: origin.transforms(target) for origin in origins}
    found = hazards.of_aggregate(aggregate.to_stream(), [])
    if found:
        with pytest.raises(HazardRefused):
            await create_aggregate(client, aggregate)
    await create_aggregate(client, aggregate, force=["key-collision"])
    landed = {
        place
        for name, keys in stored.items()
        for key in keys
        if (place := land(rules[name], f"$KV.{name}.{key}")) is not None
    }
    assert set(replicas.subjects(f"KV_{target}")) == landed
