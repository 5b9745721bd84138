"""Random topologies on real servers: every stream holds the entries predicted from file and writes."""

import json
import random
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from kvctl.kv.config import differences
from kvctl.labs import run_lab
from kvctl.server import Server, run_server
from tests.support.raw import RawClient
from tests.topology import killed
from tests.topology.random_topology import RandomTopology, Writes, living

pytestmark = pytest.mark.oracle
PATIENCE = 30.0
"""Seconds in which replicas get what was written, also after a restart."""
APPLIED, STALE, PARTLY, LATE = 0, 4, 7, 9


def namer() -> Callable[[str], str]:
    numbers = count(1)
    return lambda prefix: f"{prefix}{next(numbers)}"


class Scene:
    """A random topology on servers, with a log of actions for failures."""

    def __init__(
        self,
        seed: int,
        servers: Mapping[str, Server],
        directory: Path,
        domains: Mapping[str, str] | None = None,
        *,
        restarts: bool = True,
    ) -> None:
        self.dice = random.Random(seed)
        self.servers, self.file = servers, directory / "topology.json"
        urls = {place: server.url for place, server in servers.items() if place}
        self.topology = RandomTopology(self.dice, namer(), domains, memory=not restarts, urls=urls)
        self.topology.grow(self.dice.randint(3, 8))
        self.restarts = restarts
        self.raws = {place: RawClient(server.url) for place, server in servers.items()}
        self.kills = restarts and self.dice.random() < 0.5
        self.writes = Writes(self.dice, self.raws, kills=self.kills)
        for raw in self.raws.values():
            raw.create_bucket("STRANGER", max_msgs_per_subject=3, description="in no file", metadata={"owner": "x"})
            raw.put("STRANGER", "k", b"theirs")
        self.strangers = self._strangers()
        print(f"seed {seed}")

    def close(self) -> None:
        for raw in self.raws.values():
            raw.close()

    def step(self) -> None:
        """Write, change the file and apply it, or restart a server; then compare."""
        chance = self.dice.random()
        if chance < 0.35:
            number = self.dice.randint(1, 40)
            print(f"write {number}")
            self.writes.some(self.topology, number)
        elif chance < 0.9 or not self.restarts:
            print(self.topology.change())
            self.apply()
        else:
            self._restart()
        self.compare()

    def apply(self) -> None:
        """Apply the file: once, killed on the way and again, or twice at the same time and again."""
        self.file.write_text(json.dumps(self.topology.document()))
        chance = self.dice.random()
        if chance < 0.35:
            at, answered = self.dice.randrange(6), self.dice.random() < 0.5
            print(f"apply, killed at write {at} {'after' if answered else 'before'} its answer")
            assert self._run(at=at, answered=answered) in (APPLIED, killed.KILLED)
        elif chance < 0.5:
            print("apply twice at once")
            with ThreadPoolExecutor(2) as pool:
                codes = [pool.submit(self._run) for _ in range(2)]
            assert {code.result() for code in codes} <= {APPLIED, STALE, PARTLY, LATE}
        print("apply")
        assert self._run() == APPLIED
        self.writes.emptied(self.topology)
        # An apply waits until replicas are filled.
        alive = self.topology.contents(self.writes.alive)
        if time.monotonic() > self.writes.last_expiry + 1:
            for item in self.topology.replicas:
                missing = alive[item.name].keys() - living(self.raws[item.place], self.topology, item.name).keys()
                assert not missing, f"`{item.name}` lacks {missing} after apply"

    def compare(self) -> None:
        """Compare contents of every stream with the expected ones; a bucket outside the topology stays unchanged."""
        assert self._strangers() == self.strangers
        deadline = time.monotonic() + PATIENCE
        wanted = self.topology.contents(self.writes.alive)
        for name, contents in wanted.items():
            raw = self.raws[self.topology.resources[name].place]
            while (found := living(raw, self.topology, name)) != contents:
                assert time.monotonic() < deadline, self._told(name, contents, found)
                time.sleep(0.05)

    def _strangers(self) -> dict[str, Any]:
        infos = {place: raw.api("STREAM.INFO.KV_STRANGER") for place, raw in self.raws.items()}
        return {place: (info["config"], info["created"], info["state"]["messages"]) for place, info in infos.items()}

    def _told(self, name: str, wanted: dict[str, bytes], found: dict[str, bytes]) -> str:
        changed = {key for key in wanted.keys() & found.keys() if wanted[key] != found[key]}
        file = json.dumps(self.topology.document(), indent=1)
        return f"`{name}`: missing {wanted.keys() - found.keys()}, extra {found.keys() - wanted.keys()}, " + (
            f"other values {changed}\n{file}"
        )

    def _run(self, **settings: Any) -> int:
        confirmed = [f"--confirm={name}" for name in self.topology.ever]
        server = ["-s", self.servers[""].url] if "" in self.servers else []
        args = ["topology", "apply", "-f", str(self.file), "--prune", "--yes", *confirmed, *server]
        return killed.run(args, **settings)[0]

    def _restart(self) -> None:
        place = self.dice.choice([*self.servers])
        print(f"{'kill and start' if self.kills else 'restart'} the server {place}")
        self.raws[place].close()
        if self.kills:
            self.servers[place].kill()
            self.servers[place].start()
        else:
            self.servers[place].restart()
        self.raws[place] = RawClient(self.servers[place].url)


@pytest.mark.guarantee("topology-1", "topology-2", "topology-3", "replicas-1")
@pytest.mark.parametrize("restarts", [True, False], ids=["restarts", "recreated-origins"])
def test_replicas_hold_entries_predicted_from_file_and_writes(own_server, tmp_path, seed, steps, restarts):
    scene = Scene(seed, {"": own_server}, tmp_path, restarts=restarts)
    scene.apply()
    scene.writes.some(scene.topology, 40)
    for _ in range(steps(10)):
        scene.step()
    scene.close()


def test_replicas_across_domains_hold_entries_predicted_from_file_and_writes(tmp_path, seed, steps):
    with run_lab("leaf") as lab:
        servers = {place: lab.servers[place] for place in ("hub", "leaf")}
        scene = Scene(seed, servers, tmp_path, {"hub": "hub", "leaf": "leaf"}, restarts=False)
        scene.apply()
        for _ in range(steps(4)):
            scene.step()
        scene.close()


@pytest.fixture
def other_server():
    """Return a second, empty server."""
    with run_server(name="other") as running:
        yield running


@pytest.mark.guarantee("topology-4")
def test_rendered_configurations_equal_those_that_apply_creates(own_server, other_server, tmp_path, seed, steps):
    dice, names, file = random.Random(seed), namer(), tmp_path / "topology.json"
    with RawClient(own_server.url) as applied, RawClient(other_server.url) as created:
        for number in range(steps(4)):
            topology = RandomTopology(dice, names)
            topology.grow(dice.randint(2, 8))
            file.write_text(json.dumps(topology.document()))
            print(f"topology {number}: {file.read_text()}")
            code, text = killed.output(["topology", "render", "-f", str(file)])
            assert code == 0
            assert killed.run(["topology", "apply", "-f", str(file), "--yes", "-s", own_server.url])[0] == 0
            rendered = json.loads(text)
            assert {stream["name"] for stream in rendered} == {item.stream for item in topology.resources.values()}
            for stream in rendered:
                created.create_stream(**stream)
            plan = ["topology", "plan", "-f", str(file), "--exit-code", "-s", other_server.url]
            assert killed.output(plan) == (0, "Nothing to change\n")
            for stream in rendered:
                ours, theirs = (raw.api(f"STREAM.INFO.{stream['name']}")["config"] for raw in (applied, created))
                assert differences(ours, theirs) == []
                assert ours == theirs
