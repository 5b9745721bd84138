"""Damage done to replicas and origins by raw requests: each tool's report compared with raw reads."""

import asyncio
import base64
import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import kvctl
from kvctl.doctor import examination
from kvctl.kv.maintenance import bucket_backup
from kvctl.server import Server
from kvctl.topology.audit.audit import audit
from kvctl.topology.audit.verdict import AuditDifference, AuditOutcome
from kvctl.topology.health.status import ReplicaSelection, status
from kvctl.topology.survey import graph
from kvctl.topology.survey.inventory import survey
from tests.support.raw import RawClient
from tests.topology import killed
from tests.topology.random_topology import RandomTopology, Writes, living

PATIENCE = timedelta(seconds=3)
SETTLED = 30.0
"""Seconds in which what was written has to arrive."""
Message = tuple[bytes, int, str | None]
"""Value, revision, and the stream that brought it; of living keys only."""


@dataclass
class Shape:
    """Some buckets, a mirror of the first, and an aggregate of all under separate prefixes."""

    raw: RawClient
    dice: random.Random
    tag: str
    log: list[str] = field(default_factory=list)
    origins: list[str] = field(default_factory=list)
    start: int = 1
    """Where the aggregate's sources begin."""
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    @property
    def mirror(self) -> str:
        return f"M{self.tag}"

    @property
    def aggregate(self) -> str:
        return f"A{self.tag}"

    def build(self) -> None:
        history = self.dice.choice((1, 1, 3))
        self.origins = [f"O{self.tag}{letter}" for letter in "abc"[: self.dice.randint(1, 3)]]
        for name in self.origins:
            self.create(name, history)
        self._made(
            self.mirror, mirror={"name": f"KV_{self.origins[0]}"}, max_msgs_per_subject=history, mirror_direct=True
        )
        sources = [
            {
                "name": f"KV_{name}",
                "opt_start_seq": 1,
                "subject_transforms": [{"src": f"$KV.{name}.>", "dest": f"$KV.{self.aggregate}.{name}.>"}],
            }
            for name in self.origins
        ]
        writable = self.dice.random() < 0.5
        subjects = [f"$KV.{self.aggregate}.>"] if writable else []
        self._made(f"KV_{self.aggregate}", subjects=subjects, sources=sources, max_msgs_per_subject=history)
        self.log.append(f"history {history}, {len(self.origins)} origins, {'writable' if writable else 'read-only'}")

    def create(self, name: str, history: int) -> None:
        self.raw.create_bucket(name, max_msgs_per_subject=history)

    def write(self, operations: int) -> None:
        """Put, delete and purge keys, all in the origins."""
        for _ in range(operations):
            name, key = self.dice.choice(self.origins), f"k{self.dice.randrange(12)}"
            operation = self.dice.choices(("put", "DEL", "PURGE"), (8, 1, 1))[0]
            headers = {} if operation == "put" else {"KV-Operation": operation}
            if operation == "PURGE":
                headers["Nats-Rollup"] = "sub"
            self.raw.put(name, key, f"v{next(self.numbers)}".encode() if operation == "put" else b"", headers or None)
            self.log.append(f"{operation} {name} {key}")

    def held(self, stream: str) -> dict[str, Message]:
        """Return the live keys of a stream by subject, read message by message."""
        found = {}
        subjects = self.info(stream, subjects_filter=">")["state"].get("subjects") or {}
        for subject in subjects:
            answer = self.raw.api(f"STREAM.MSG.GET.{stream}", {"last_by_subj": subject})
            if "error" in answer:
                continue
            message = answer["message"]
            headers = base64.b64decode(message.get("hdrs", "")).decode()
            if "KV-Operation" in headers or "Nats-Marker-Reason" in headers:
                continue
            brought = headers.partition("Nats-Stream-Source: ")[2].split(" ")[0].partition(":")[0] or None
            found[subject] = (base64.b64decode(message.get("data", "")), message["seq"], brought)
        return found

    def wanted(self) -> dict[str, dict[str, Message]]:
        """Return the expected contents of the replicas, by stream."""
        held = {name: self.held(f"KV_{name}") for name in self.origins}
        return {
            self.mirror: held[self.origins[0]],
            f"KV_{self.aggregate}": {
                f"$KV.{self.aggregate}.{name}.{subject.split('.', 2)[2]}": message
                for name in self.origins
                for subject, message in held[name].items()
            },
        }

    def differences(self) -> dict[str, set[tuple[str, str]]]:
        """Return the differences in the replicas, by stream: subjects and kinds."""
        found = {}
        for stream, wanted in self.wanted().items():
            holds = self.held(stream)
            whole = 2 if stream == self.mirror else 1  # a mirror has the revisions, too
            missing = {(subject, "missing") for subject in wanted.keys() - holds.keys()}
            extra = {
                (subject, "extra")
                for subject in holds.keys() - wanted.keys()
                if stream == self.mirror or holds[subject][2] is not None  # else it was written there
            }
            other = {
                (subject, "other")
                for subject in holds.keys() & wanted.keys()
                if holds[subject][:whole] != wanted[subject][:whole]
            }
            found[stream] = missing | extra | other
        return found

    def betrayed(self, stream: str) -> bool:
        """Return whether counts alone show that the replica lacks entries, or is ahead of its origin."""
        info = self.info(stream)
        origins = [self.info(f"KV_{name}") for name in self.origins]
        if stream == self.mirror:
            mine, theirs = info["state"], origins[0]["state"]
            return bool(mine["messages"] != theirs["messages"] or mine["last_seq"] > theirs["last_seq"])
        keys = sum(origin["state"].get("num_subjects", 0) for origin in origins)
        further = [
            source.get("seq", 0) > origin["state"]["last_seq"]
            for origin in origins
            for source in info["sources"]
            if source["name"] == origin["config"]["name"]
        ]
        return info["state"].get("num_subjects", 0) < keys or any(further)

    def settle(self) -> None:
        """Wait until the replicas hold the expected entries, if they are undamaged."""
        deadline = time.monotonic() + SETTLED
        while any(self.differences().values()) or not self._level():
            assert time.monotonic() < deadline, (self.differences(), self.log)
            time.sleep(0.05)

    def _level(self) -> bool:
        origin, mirror = (self.info(stream)["state"] for stream in (f"KV_{self.origins[0]}", self.mirror))
        return bool(origin["last_seq"] == mirror["last_seq"])

    def info(self, stream: str, **request: Any) -> dict[str, Any]:
        return self.raw.api(f"STREAM.INFO.{stream}", request or None)

    def delete(self) -> None:
        for stream in (self.mirror, f"KV_{self.aggregate}", *(f"KV_{name}" for name in self.origins)):
            self.raw.api(f"STREAM.DELETE.{stream}")

    def _made(self, name: str, **config: Any) -> None:
        stream = {"name": name, "allow_direct": True, "allow_rollup_hdrs": True, "deny_delete": True, "discard": "new"}
        answer = self.raw.api(f"STREAM.CREATE.{name}", stream | config)
        assert "error" not in answer, answer


Damage = Callable[[Shape], None]


def purge_replica(shape: Shape) -> None:
    stream = shape.dice.choice((shape.mirror, f"KV_{shape.aggregate}"))
    _purge(shape, stream)


def purge_key_of_replica(shape: Shape) -> None:
    stream = shape.dice.choice((shape.mirror, f"KV_{shape.aggregate}"))
    if subjects := sorted(shape.held(stream)):
        _purge(shape, stream, filter=shape.dice.choice(subjects))


def purge_front_of_replica(shape: Shape) -> None:
    stream = shape.dice.choice((shape.mirror, f"KV_{shape.aggregate}"))
    state = shape.info(stream)["state"]
    _purge(shape, stream, seq=(state["first_seq"] + state["last_seq"]) // 2)


def purge_key_of_origin(shape: Shape) -> None:
    stream = f"KV_{shape.dice.choice(shape.origins)}"
    if subjects := sorted(shape.held(stream)):
        _purge(shape, stream, filter=shape.dice.choice(subjects))


def purge_origin(shape: Shape) -> None:
    _purge(shape, f"KV_{shape.dice.choice(shape.origins)}")


def write_into_aggregate(shape: Shape) -> None:
    """Write over a key of an origin; a read-only aggregate refuses that."""
    subject = f"$KV.{shape.aggregate}.{shape.dice.choice(shape.origins)}.k{shape.dice.randrange(12)}"
    if shape.info(f"KV_{shape.aggregate}")["config"].get("subjects"):
        shape.log.append(f"write {subject}")
        shape.raw.request(subject, b"foreign")


def recreate_origin(shape: Shape) -> None:
    name = shape.dice.choice(shape.origins)
    config = shape.info(f"KV_{name}")["config"]
    shape.raw.api(f"STREAM.DELETE.KV_{name}")
    shape.create(name, config["max_msgs_per_subject"])
    shape.log.append(f"recreate {name}")
    for number in range(shape.dice.randint(1, 5)):
        shape.raw.put(name, f"k{number}", b"new")
    _until_resumed(shape, name)


def _until_resumed(shape: Shape, name: str) -> None:
    """Wait until the aggregate has found the new origin by itself, which takes servers ten seconds or more."""
    deadline = time.monotonic() + 90
    while True:
        last = shape.info(f"KV_{name}")["state"]["last_seq"]
        sources = shape.info(f"KV_{shape.aggregate}")["sources"]
        told = next(source for source in sources if source["name"] == f"KV_{name}")
        if told.get("seq") == last and 0 <= told["active"] < 2e9:
            return
        assert time.monotonic() < deadline, (told, shape.log)
        time.sleep(0.2)


def _purge(shape: Shape, stream: str, **request: Any) -> None:
    shape.log.append(f"purge {stream} {json.dumps(request)}")
    answer = shape.raw.api(f"STREAM.PURGE.{stream}", request or None)
    assert "error" not in answer, answer


QUICK: tuple[Damage, ...] = (
    purge_replica,
    purge_key_of_replica,
    purge_front_of_replica,
    purge_key_of_origin,
    purge_origin,
    write_into_aggregate,
)


def keep_one(server: Server) -> None:
    """Keep one stream: servers that delete the last one may refuse the next briefly (10049)."""
    with RawClient(server.url) as raw:
        raw.create_bucket("KEPT")


@dataclass
class Said:
    """Return the tools' reports on a shape."""

    states: dict[str, set[str]]
    findings: set[tuple[str, str]]
    outcomes: list[AuditOutcome]
    differences: dict[str, set[tuple[str, str]]]


async def said(client: kvctl.Client, shape: Shape) -> Said:
    names = {shape.mirror, shape.aggregate, *shape.origins}
    rows = await status({"": client.api}, ReplicaSelection(shape.origins), second_look=0.3)
    states: dict[str, set[str]] = {}
    for row in rows:
        states.setdefault(row["stream"], set()).add(row["state"])
    findings = {
        (item.check, item.subject)
        for item in await examination.examine(client.api)
        if item.subject in names and str(item.severity) != "note"
    }
    outcomes, differences = [], {}
    for replica in graph.named((await survey({"": client.api})).replicas(), shape.origins):
        found: list[AuditDifference] = []
        outcomes += await audit(replica, PATIENCE, report=found.append)
        kinds = {"stale": "other", "differing": "other"}
        differences[replica.stream] = {(item.subject, kinds.get(str(item.kind), str(item.kind))) for item in found}
    held = {name: len(shape.held(f"KV_{name}")) for name in shape.origins}
    assert all(outcome.keys == held[outcome.origin] for outcome in outcomes), (outcomes, held, shape.log)
    return Said(states, findings, outcomes, differences)


async def check_healthy(client: kvctl.Client, shape: Shape) -> None:
    found = await said(client, shape)
    assert all(states == {"ok"} for states in found.states.values()), (found, shape.log)
    assert found.findings == set(), (found, shape.log)
    assert all(outcome.consistent for outcome in found.outcomes), (found, shape.log)
    assert not any(found.differences.values()), (found, shape.log)


async def check_damaged(client: kvctl.Client, shape: Shape) -> None:
    wanted = shape.differences()
    found = await said(client, shape)
    assert found.differences == wanted, (found, wanted, shape.log)
    for outcome in found.outcomes:
        assert outcome.error is None, (outcome, shape.log)
    for stream, differing in wanted.items():
        if shape.betrayed(stream):
            assert found.states[stream] - {"ok"}, (stream, found, shape.log)
        results = [outcome.consistent for outcome in found.outcomes if outcome.replica == stream.removeprefix("KV_")]
        if differing:
            assert False in results, (stream, found, shape.log)


@pytest.mark.guarantee("replicas-2", "replicas-4")
@pytest.mark.oracle
async def test_tools_agree_with_raw_reads_about_damage(own_server, seed, steps):
    dice = random.Random(seed)
    keep_one(own_server)
    async with kvctl.connect(own_server.url) as client:
        for number in range(steps(8)):
            with RawClient(own_server.url) as raw:
                shape = Shape(raw, dice, f"{number}_")
                shape.build()
                for _ in range(2):
                    shape.write(dice.randint(1, 40))
                    await asyncio.to_thread(shape.settle)
                await check_healthy(client, shape)
                damages = [dice.choice(QUICK) for _ in range(dice.choice((1, 1, 2)))]
                for damage in damages:
                    damage(shape)
                await check_damaged(client, shape)
                shape.delete()


@pytest.mark.guarantee("replicas-2")
@pytest.mark.oracle
async def test_tools_agree_with_raw_reads_about_origins_that_were_replaced(own_server, seed, steps, tmp_path):
    dice = random.Random(seed)
    keep_one(own_server)
    async with kvctl.connect(own_server.url) as client:
        for number in range(steps(8) // 8):
            with RawClient(own_server.url) as raw:
                shape = Shape(raw, dice, f"{number}_")
                shape.build()
                shape.write(dice.randint(10, 40))
                await asyncio.to_thread(shape.settle)
                if dice.random() < 0.5:
                    await asyncio.to_thread(recreate_origin, shape)
                else:
                    await restore_origin(client, shape, tmp_path / str(number))
                await check_damaged(client, shape)
                shape.delete()


@pytest.mark.guarantee("replicas-2")
@pytest.mark.oracle
async def test_tools_agree_with_the_model_of_random_topologies(own_server, seed, steps, tmp_path):
    """Apply files with filters, maps and chains, then purge keys in one of the replicas that nothing reads."""
    dice, names = random.Random(seed), count(1)
    keep_one(own_server)
    async with kvctl.connect(own_server.url) as client:
        with RawClient(own_server.url) as raw:
            for _ in range(steps(3)):
                topology = RandomTopology(dice, lambda prefix: f"{prefix}{next(names)}", memory=True)
                topology.grow(dice.randint(3, 8))
                print(json.dumps(topology.document()))
                await asyncio.to_thread(_applied, client, raw, topology, tmp_path / "topology.json")
                writes = Writes(dice, {"": raw})
                writes.some(topology, 60)
                await asyncio.to_thread(_until_held, raw, topology, writes)
                await _check_random(client, topology, {})
                damage = await asyncio.to_thread(_damaged, raw, dice, topology)
                await _check_random(client, topology, damage)
                for item in topology.resources.values():
                    raw.api(f"STREAM.DELETE.{item.stream}")


def _applied(client: kvctl.Client, raw: RawClient, topology: RandomTopology, file: Path) -> None:
    file.write_text(json.dumps(topology.document()))
    url = client.connection.context.url
    assert killed.run(["topology", "apply", "-f", str(file), "--yes", "-s", url])[0] == 0


def _until_held(raw: RawClient, topology: RandomTopology, writes: Writes) -> None:
    """Wait until all replicas hold the expected entries, and expired keys are removed everywhere."""
    deadline = time.monotonic() + SETTLED
    wanted = topology.contents(writes.alive)
    time.sleep(max(writes.last_expiry + 3 - time.monotonic(), 0))
    while any(living(raw, topology, name) != contents for name, contents in wanted.items()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _damaged(raw: RawClient, dice: random.Random, topology: RandomTopology) -> dict[str, set[str]]:
    """Purge some live keys of a replica that nothing reads, and return its name."""
    read = {origin.name for item in topology.resources.values() for origin in item.origins}
    ends = [item for item in topology.replicas if item.name not in read and living(raw, topology, item.name)]
    if not ends:
        return {}
    item = dice.choice(ends)
    held = sorted(living(raw, topology, item.name))
    chosen = set(dice.sample(held, dice.randint(1, len(held))))
    for key in chosen:
        subject = f"$KV.{topology.key_space(item.name)}.{key}"
        assert "error" not in raw.api(f"STREAM.PURGE.{item.stream}", {"filter": subject})
    return {item.stream: chosen}


async def _check_random(client: kvctl.Client, topology: RandomTopology, damage: dict[str, set[str]]) -> None:
    found: dict[str, set[str]] = {}
    for replica in (await survey({"": client.api})).replicas():
        differences: list[AuditDifference] = []
        outcomes = await audit(replica, PATIENCE, report=differences.append)
        assert all(outcome.error is None for outcome in outcomes), outcomes
        if differences:
            assert {str(item.kind) for item in differences} == {"missing"}, differences
            found[replica.stream] = {item.key for item in differences}
        elif replica.stream not in damage:
            assert all(outcome.consistent for outcome in outcomes), outcomes
    assert found == damage
    rows = await status({"": client.api}, ReplicaSelection(), second_look=0.3)
    odd = {row["stream"]: (row["state"], row["evidence"]) for row in rows if row["state"] != "ok"}
    assert odd.keys() <= damage.keys(), odd
    for item in topology.replicas:
        if item.stream in damage and item.section == "mirrors":
            assert odd.get(item.stream, ("ok", ""))[0] == "missing entries", odd
    checks = [item for item in await examination.examine(client.api) if item.subject in topology.resources]
    wrong = [item for item in checks if str(item.severity) != "note" and f"KV_{item.subject}" not in damage]
    assert [item for item in wrong if item.subject not in damage] == [], wrong


async def restore_origin(client: kvctl.Client, shape: Shape, directory: Path) -> None:
    """Replace an origin by an older backup."""
    name = shape.dice.choice(shape.origins)
    await bucket_backup.backup(client.api, name, directory)
    shape.write(20)
    await asyncio.to_thread(shape.settle)
    shape.log.append(f"restore {name}")
    shape.raw.api(f"STREAM.DELETE.KV_{name}")
    await bucket_backup.restore(client.api, directory)
