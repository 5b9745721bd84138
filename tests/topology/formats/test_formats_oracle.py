"""Random topologies in the formats of other tools, and back: the same streams in the same contexts."""

import json
import random
from itertools import count
from typing import Any

import pytest

from kvctl.documents import hcl, parser
from kvctl.kv.config_diff import differences
from kvctl.render.hcl_text import dump_resources
from kvctl.render.yaml_text import dump
from kvctl.topology.file.document import Topology, read_topology
from kvctl.topology.formats import lossy_format, nack, terraform
from kvctl.topology.formats.imported import READERS, topology_file
from kvctl.topology.formats.placed import Placed, SourceFile
from kvctl.topology.plan.rendered import render
from tests.topology.formats import schemas
from tests.topology.random_topology import RandomTopology

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
NACK, TERRAFORM = schemas.validator(schemas.NACK), schemas.validator(schemas.TERRAFORM)
DOMAINS = {"": "home", "hub": "h", "leaf node": "l"}


def settings(dice: random.Random) -> dict[str, Any]:
    """Return settings that all formats can express."""
    found: dict[str, Any] = {
        "description": dice.choice(TEXTS), "ttl": dice.choice(["90s", "1h30m", "400d", "0"]),
        "marker_ttl": dice.choice(["1s", "2h"]), "replicas": dice.choice([1, 3, 5]),
        "max_bytes": dice.choice([1, 10**12]), "storage": dice.choice(["file", "memory"]),
        "max_value_size": dice.choice([1, 2**31 - 1]), "compress": dice.random() < 0.5, "atomic": dice.random() < 0.5,
        "first_revision": dice.choice([1, 2**40]), "metadata": {dice.choice(TEXTS): dice.choice(TEXTS), "m": ""},
        "republish": "$KV.B.>=copies.{{wildcard(1)}}.>",
    }  # fmt: skip
    chosen = dict(dice.sample(sorted(found.items()), dice.randint(0, len(found))))
    return chosen | dice.choice([{}, {"cluster": "c"}, {"cluster": "c", "tags": ["az:1", "ssd"]}])


def streams(topology: Topology) -> dict[tuple[str, str], dict[str, Any]]:
    found = render(topology)
    return {(place, config["name"]): config for config, place in zip(found.streams, found.places, strict=True)}


def texts(format: str, topology: Topology) -> list[Any]:
    """Return the documents of a topology, written as text and parsed again."""
    placed = [Placed(config, place) for (place, _), config in streams(topology).items()]
    if format == "nats":
        return [SourceFile("f", json.loads(json.dumps(stream.config)), stream.place) for stream in placed]
    if format == "nack":
        resources = nack.resources(placed, topology.contexts)
        found = parser.parse_all("---\n".join(map(dump, resources)).encode(), "f.yaml")
        for document in found:
            NACK.validate(document.data["spec"])
        return [SourceFile("f", document.data) for document in found]
    blocks = terraform.resources(placed, topology.contexts)
    for body in blocks["resource"]["jetstream_stream"].values():
        TERRAFORM.validate(body)
    data = hcl.parse(dump_resources(blocks).encode(), "f.tf")
    assert (
        READERS[format]([SourceFile("f", hcl.from_json(blocks))]).streams
        == READERS[format]([SourceFile("f", data)]).streams
    )
    return [SourceFile("f", data)]


@pytest.mark.parametrize("format", READERS)
def test_random_topologies_are_the_same_after_a_format(format, seed, steps):
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

        placed = [Placed(config, place) for (place, _), config in streams(topology).items()]
        assert not lossy_format.of_format(format, placed, topology.contexts)
        exported = topology_file(READERS[format](texts(format, topology)))
        assert not exported.left_out
        again = streams(read_topology(parser.Document(exported.document, "f")))
        after = {(identifier(place), name): config for (place, name), config in again.items()}
        before = {(identifier(place), name): config for (place, name), config in streams(topology).items()}
        assert before.keys() == after.keys()
        assert not [(where, lost) for where in before if (lost := differences(before[where], after[where]))]


def identifier(place: str) -> str:
    """Return the name of a context as formats write it that take identifiers alone."""
    return place.replace(" ", "_").replace("-", "_")
