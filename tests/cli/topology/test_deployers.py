"""What `topology render` and every `--dry-run` print is what kvctl creates, in every format.

The printed configurations are created by raw requests. The server's own description of the streams is compared with
that of the streams that kvctl creates.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.conftest import Run
from tests.support.raw import RawClient
from tests.topology.views import tools

Streams = dict[str, dict[str, Any]]

TOPOLOGY = """
version: 1
name: shop
buckets:
  {B}1: {{history: 5, ttl: 30d, marker_ttl: 1h, description: 'a "$${{b}}" %{{c}}', compress: true, max_bytes: 10MiB,
        atomic: true, max_value_size: 64KiB, metadata: {{team: a}},
        republish: "$KV.{B}1.>={B}.copies.>", first_revision: 42}}
  {B}2: {{storage: memory, ttl: 90s}}
  {B}3: {{}}
mirrors:
  {M}1: {{origin: {B}1}}
  {M}2: {{origin: {M}1, max_bytes: 1GB}}
  {M}3: {{origin: {B}3, origin_domain: nowhere, history: 1, ttl: 0}}
aggregates:
  {A}1: {{origins: [{B}3], deny_purge: true}}
  {A}2:
    writable: true
    origins:
      - {{bucket: {B}1, keys: ["NEW.>", "OLD.*"], prefix: orders}}
      - {{bucket: {B}2, map: {{"*.*": "stock.$2.$1"}}}}
  {A}3: {{origins: [{{stream: {M}1, prefix: copy}}]}}
"""
FORCED = [f"--force={name}" for name in ("missing-origin", "unconnected", "ttl-not-inherited")]


class World:
    """The streams of one topology on the shared server."""

    def __init__(self, raw: RawClient, run: Run, url: str, folder: Path, names: Mapping[str, str]) -> None:
        self.raw, self.url, self._run = raw, url, run
        self.file = folder / "topology.yaml"
        self.file.write_text(TOPOLOGY.format_map(names))
        self.streams = [
            *(f"KV_{names['B']}{n}" for n in "123"),
            *(f"{names['M']}{n}" for n in "123"),
            *(f"KV_{names['A']}{n}" for n in "123"),
        ]

    def kvctl(self, *args: str, stdin: bytes = b"") -> str:
        result = self._run(*args, "-s", self.url, stdin=stdin)
        assert result.exit_code == 0, result.err
        return result.out

    def render(self, *args: str) -> str:
        return self.kvctl("topology", "render", "-f", str(self.file), *args)

    def created(self, configs: list[dict[str, Any]]) -> Streams:
        """Create streams by raw requests, and return them as the server describes them."""
        for config in configs:
            answer = self.raw.api(f"STREAM.CREATE.{config['name']}", config)
            assert "error" not in answer, answer
        return self.found()

    def applied(self) -> Streams:
        self.kvctl("topology", "apply", "-f", str(self.file), "--yes", "--no-wait", *FORCED)
        return self.found()

    def found(self) -> Streams:
        """Return the configurations of all streams without the server's own metadata, and delete them."""
        infos = [self.raw.api(f"STREAM.INFO.{name}") for name in self.streams]
        configs: Streams = {info["config"]["name"]: info["config"] for info in infos if "error" not in info}
        for name, config in configs.items():
            kept = {key: text for key, text in config.get("metadata", {}).items() if not key.startswith("_nats.")}
            config["metadata"] = kept
            self.raw.api(f"STREAM.DELETE.{name}")
        return configs


@pytest.fixture
def world(run, raw, server, unique, tmp_path):
    made = World(raw, run, server.url, tmp_path, {letter: unique(letter) for letter in "BMA"})
    yield made
    made.found()


@pytest.mark.guarantee("topology-4")
def test_rendered_streams_are_those_that_apply_creates_in_every_format(world, tmp_path):
    wanted = world.applied()
    assert len(wanted) == len(world.streams)
    assert all(source["opt_start_seq"] == 1 for config in wanted.values() for source in config.get("sources", ()))
    assert world.created(json.loads(world.render())) == wanted

    paths = world.render("--format", "nats", "--to", str(tmp_path / "streams")).splitlines()
    assert world.created([json.loads(Path(path).read_bytes()) for path in paths]) == wanted

    resources = list(yaml.safe_load_all(world.render("--format", "nack")))
    assert world.created([tools.created_by_nack(resource["spec"]) for resource in resources]) == wanted
    assert json.loads(world.render("--format", "nack", "-o", "json"))["items"] == resources

    blocks = json.loads(world.render("--format", "terraform"))["resource"]["jetstream_stream"]
    assert world.created([tools.created_by_terraform(body) for body in blocks.values()]) == wanted


def test_plan_of_the_export_of_rendered_streams_is_empty(world):
    """What other tools deployed is read from the servers."""
    world.kvctl("topology", "apply", "-f", str(world.file), "--yes", "--no-wait", *FORCED)
    names = [name.removeprefix("KV_") for name in world.streams]
    file = world.kvctl("topology", "export", *names)
    assert "first_revision: 42" in file
    plan = world.kvctl("topology", "plan", "-f", "-", "--exit-code", "-o", "json", stdin=file.encode())
    assert json.loads(plan)["changes"] == []


def test_dry_runs_print_what_is_created(world, unique):
    bucket, other, mirror, aggregate = (unique(letter) for letter in "BCMA")
    world.kvctl("bucket", "add", other, "--marker-ttl", "1m", "--ttl", "1h")
    commands = [
        ("bucket", "add", bucket, "--history", "4", "--ttl", "1h", "--compress", "--metadata", "a=b", "--atomic"),
        ("mirror", "create", mirror, "--origin", bucket, "--max-bytes", "1GB", "--no-wait"),
        ("aggregate", "create", aggregate, "--origin", f"bucket={bucket},keys=NEW.>,prefix=n", "--no-wait"),
        ("aggregate", "add-origin", aggregate, f"bucket={other},prefix=o", "--no-wait"),
    ]
    world.streams = [f"KV_{bucket}", mirror, f"KV_{aggregate}", f"KV_{other}"]
    for command in commands:
        shown = json.loads(world.kvctl(*command, "--dry-run"))
        world.kvctl(*command)
        stored = world.raw.api(f"STREAM.INFO.{shown['name']}")["config"]
        if "add-origin" in command:
            assert [source["opt_start_seq"] for source in shown["sources"]] == [1, 1]
            assert stored["sources"] == shown["sources"]
            continue
        # A stream of another name, created as shown, has the same settings.
        twin = {**shown, "name": f"{shown['name']}_twin", "subjects": []}
        if "mirror" not in shown and "sources" not in shown:
            twin["subjects"] = [f"{twin['name']}.>"]
        world.streams.append(twin["name"])
        answer = world.raw.api(f"STREAM.CREATE.{twin['name']}", twin)
        assert {**answer["config"], "name": "", "subjects": []} == {**stored, "name": "", "subjects": []}


def test_plan_prints_the_configuration_that_apply_creates(world):
    plan = json.loads(world.kvctl("topology", "plan", "-f", str(world.file), "-o", "json", *FORCED))
    shown = [change["config"] for change in plan["changes"]]
    dry = json.loads(world.kvctl("topology", "apply", "-f", str(world.file), "--dry-run", "-o", "json", *FORCED))
    assert [change["config"] for change in dry["changes"]] == shown
    assert world.created(shown) == world.applied()
