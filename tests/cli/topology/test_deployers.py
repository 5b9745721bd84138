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
  {M}3: {{origin: {B}4, origin_domain: nowhere, history: 1, ttl: 0}}
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


def test_plan_prints_the_configuration_that_apply_creates(world):
    plan = json.loads(world.kvctl("topology", "plan", "-f", str(world.file), "-o", "json", *FORCED))
    shown = [change["config"] for change in plan["changes"]]
    dry = json.loads(world.kvctl("topology", "apply", "-f", str(world.file), "--dry-run", "-o", "json", *FORCED))
    assert [change["config"] for change in dry["changes"]] == shown
    assert world.created(shown) == world.applied()
