"""Random topologies in the files of other tools, which create the same streams."""

import json
import random
from itertools import count
from typing import Any

import pytest
import yaml

from kvctl.documents import parser
from kvctl.kv.config import differences
from kvctl.render.yaml_text import dump
from kvctl.topology.model.file import Topology, read_topology
from kvctl.topology.plan.desired import render
from kvctl.topology.views import deployers
from kvctl.topology.views.deployers import PlacedStream
from tests.topology.random_topology import RandomTopology
from tests.topology.views import tools

pytestmark = pytest.mark.oracle
TEXTS = (
    "plain",
    'a "b" \\ c',
    "${x} $${y} %{z}",
    "two\nlines",
    "yes",
    "1e3",
    "é ✓",
    "{{wildcard(1)}}",
    "# no",
    "\u2028\x7f",
)
NACK, TERRAFORM = tools.validator(tools.NACK), tools.validator(tools.TERRAFORM)
DOMAINS = {"": "home", "hub": "h", "leaf node": "l"}


def settings(dice: random.Random) -> dict[str, Any]:
    """Return settings that all formats can express."""
    found: dict[str, Any] = {
        "description": dice.choice(TEXTS),
        "ttl": dice.choice(["90s", "1h30m", "400d", "0"]),
        "marker_ttl": dice.choice(["1s", "2h"]),
        "replicas": dice.choice([1, 3, 5]),
        "max_bytes": dice.choice([1, 10**12]),
        "storage": dice.choice(["file", "memory"]),
        "max_value_size": dice.choice([1, 2**31 - 1]),
        "compress": dice.random() < 0.5,
        "atomic": dice.random() < 0.5,
        "first_revision": dice.choice([1, 2**40]),
        "metadata": {dice.choice(TEXTS): dice.choice(TEXTS), "m": ""},
        "republish": "$KV.B.>=copies.{{wildcard(1)}}.>",
    }
    chosen = dict(dice.sample(sorted(found.items()), dice.randint(0, len(found))))
    return chosen | dice.choice([{}, {"cluster": "c"}, {"cluster": "c", "tags": ["az:1", "ssd"]}])


def placed_streams(topology: Topology) -> list[PlacedStream]:
    found = render(topology)
    return [PlacedStream(config, place) for config, place in zip(found.streams, found.places, strict=True)]


def created(format: str, placed: list[PlacedStream], topology: Topology) -> list[dict[str, Any]]:
    """Return the streams that the tool creates from the files, written as text and parsed again."""
    if format == "nack":
        text = "---\n".join(map(dump, deployers.nack(placed, topology.contexts)))
        specs = [document["spec"] for document in yaml.safe_load_all(text)]
        for spec in specs:
            NACK.validate(spec)
        return [tools.created_by_nack(spec) for spec in specs]
    document = json.loads(json.dumps(deployers.terraform(placed, topology.contexts)))
    bodies = document["resource"]["jetstream_stream"].values()
    for body in bodies:
        TERRAFORM.validate(body)
    return [tools.created_by_terraform(body) for body in bodies]


@pytest.mark.parametrize("format", ["nack", "terraform"])
def test_tools_create_the_streams_of_random_topologies(format, seed, steps):
    dice, numbers = random.Random(seed), count(1)
    for number in range(steps(10)):
        made = RandomTopology(dice, lambda prefix: f"{prefix}{next(numbers)}", dice.choice([None, DOMAINS]))
        made.grow(dice.randint(1, 8))
        document = made.document()
        for fields in (document.get("buckets") or {}).values():
            fields.update(settings(dice))
        if made.domains is DOMAINS:
            document["contexts"] = {place: {"context": place} for place in DOMAINS if place}
        topology = read_topology(parser.Document(document, "f"))
        print(f"topology {number}: {json.dumps(document)}")

        placed = placed_streams(topology)
        assert not deployers.lossy(format, placed, topology.contexts)
        after = created(format, placed, topology)
        assert [stream.name for stream in placed] == [config["name"] for config in after]
        pairs = zip(placed, after, strict=True)
        assert not [(stream, lost) for stream, config in pairs if (lost := differences(stream.config, config))]


@pytest.mark.parametrize("format", ["nack", "terraform"])
def test_lost_settings_of_random_topologies_are_named(format, seed, steps):
    """What is refused is what the tool would create otherwise."""
    dice, numbers = random.Random(seed), count(1)
    for number in range(steps(10)):
        made = RandomTopology(dice, lambda prefix: f"{prefix}{next(numbers)}")
        made.grow(dice.randint(1, 8))
        document = made.document()
        for fields in (document.get("buckets") or {}).values():
            fields.update(settings(dice))
            fields |= dice.choice([{}, {"ttl": "1500ms"}, {"tags": ["x"]}, {"marker_ttl": "1500ms"}])
            if "republish" in fields:
                fields["republish_headers_only"] = dice.random() < 0.5
        topology = read_topology(parser.Document(document, "f"))
        print(f"topology {number}: {json.dumps(document)}")
        placed = placed_streams(topology)
        pairs = zip(placed, created(format, placed, topology), strict=True)
        lost = [(stream.name, item.field) for stream, after in pairs for item in differences(stream.config, after)]
        named = [hazard.evidence for hazard in deployers.lossy(format, placed, topology.contexts)]
        assert len(named) == len(lost)
        assert all(
            f"`{name}`" in text and f" express {field} " in text
            for text, (name, field) in zip(named, lost, strict=True)
        )
