"""An apply killed at any of its writes and run again ends like one that was not interrupted."""

from pathlib import Path
from typing import Any

import pytest

from kvctl.server import Server
from tests.cli.conftest import run_process
from tests.support.raw import RawClient
from tests.topology import killed

BEFORE = """
version: 1
name: TITLE
buckets:
  KEPT: {{history: 2}}
  MOVED: {{}}
  OTHER: {{history: 8}}
  LEFT: {{}}
mirrors:
  COPY: {{origin: KEPT}}
  NEAR: {{origin: MOVED}}
  GONE: {{origin: LEFT}}
aggregates:
  MORE: {{origins: [{bucket: KEPT, prefix: kept}]}}
  LESS: {{origins: [{bucket: KEPT, prefix: kept}, {bucket: OTHER, prefix: other}]}}
  ALL: {{origins: [{bucket: NEAR, prefix: near}]}}
  LAST: {{origins: [{bucket: LESS, prefix: less}]}}
"""
"""What there is: replicas of what will change, be made anew, and go."""

AFTER = """
version: 1
name: TITLE
buckets:
  NEW: {{ttl: 1h}}
  KEPT: {{history: 4}}
  MOVED: {{storage: memory}}
  OTHER: {{history: 8}}
mirrors:
  COPY: {{origin: KEPT}}
  NEAR: {{origin: MOVED}}
  YOUNG: {{origin: NEW}}
aggregates:
  MORE: {{origins: [{bucket: KEPT, prefix: kept}, {bucket: OTHER, prefix: other}]}}
  LESS: {{origins: [{bucket: KEPT, prefix: kept}]}}
  ALL: {{origins: [{bucket: NEAR, prefix: near}]}}
  LAST: {{origins: [{bucket: LESS, prefix: less}]}}
"""
"""What is wanted: made, changed with what follows, made anew with what reads it, an origin more, one less, deleted."""

NAMES = (*"NEW KEPT MOVED OTHER LEFT COPY NEAR GONE YOUNG MORE LESS ALL LAST TITLE".split(),)
WRITES = """
    CREATE.KV_NEW UPDATE.COPY UPDATE.KV_MORE DELETE.KV_LAST UPDATE.KV_LESS PURGE.KV_LESS UPDATE.KV_LESS
    UPDATE.KV_KEPT DELETE.KV_ALL DELETE.NEAR DELETE.KV_MOVED CREATE.KV_MOVED CREATE.NEAR CREATE.YOUNG
    CREATE.KV_ALL CREATE.KV_LAST DELETE.GONE DELETE.KV_LEFT
""".split()
"""What one that is left alone sends: each is a place to be killed at."""


class Scene:
    """Create the initial topology under unique names."""

    def __init__(self, raw: RawClient, server: Server, suffix: str, directory: Path) -> None:
        self.raw, self.server, self.suffix, self.directory = raw, server, suffix, directory
        assert self.apply(BEFORE)[0] == 0
        for bucket in ("KEPT", "MOVED", "OTHER", "LEFT"):
            for number in range(3):
                raw.put(f"{bucket}{suffix}", f"k.{number}", b"v")

    def apply(self, text: str = AFTER, **settings: Any) -> tuple[int, list[str]]:
        """Apply a file, and return the exit code and the writes."""
        return killed.run(["topology", "apply", "-f", str(self._file(text)), *self._options()], **settings)

    def apply_saved(self, plan: Path, **settings: Any) -> tuple[int, list[str]]:
        """Apply a saved plan."""
        return killed.run(["topology", "apply", str(plan), *self._options()[1:]], **settings)

    def save(self) -> Path:
        """Save a plan."""
        plan = self.directory / f"{self.suffix}.plan"
        file = str(self._file(AFTER))
        assert killed.run(["topology", "plan", "-f", file, "--prune", "--out", str(plan), *self._server()])[0] == 0
        return plan

    def state(self) -> dict[str, Any]:
        """Return the streams on the server."""
        return killed.state(self.raw, self.suffix)

    def close(self) -> None:
        """Remove everything from the shared server."""
        for stream in killed.streams(self.raw, self.suffix):
            self.raw.api(f"STREAM.DELETE.{stream}")

    def _file(self, text: str) -> Path:
        for name in NAMES:
            text = text.replace(name, name + self.suffix)
        file = self.directory / f"{self.suffix}.yaml"
        file.write_text(text.replace("{{", "{").replace("}}", "}"))
        return file

    def _options(self) -> list[str]:
        names = [f"--confirm={name}{self.suffix}" for name in ("MOVED", "NEAR", "ALL", "LAST")]
        return ["--prune", "--yes", *names, *self._server()]

    def _server(self) -> list[str]:
        return ["-s", self.server.url]


@pytest.fixture
def scene(raw, server, unique, tmp_path):
    """Return a factory of scenes, which are removed afterwards."""
    made: list[Scene] = []

    def make() -> Scene:
        made.append(Scene(raw, server, unique("_"), tmp_path))
        return made[-1]

    yield make
    for item in made:
        item.close()


@pytest.fixture(scope="module")
def wanted(server, tmp_path_factory):
    """Return the streams after an uninterrupted apply, which makes each write once."""
    with RawClient(server.url) as raw:
        one = Scene(raw, server, "_alone", tmp_path_factory.mktemp("alone"))
        code, writes = one.apply()
        assert (code, [write.replace(one.suffix, "").removeprefix("STREAM.") for write in writes]) == (0, WRITES)
        assert one.apply() == (0, [])
        state = one.state()
        one.close()
    assert len(state) == 11
    return state


def _places(*few: int) -> list[Any]:
    """Return all writes to be killed at; only some of them unless in a long run."""
    return [
        pytest.param(at, id=f"{at}-{write}", marks=() if at in few else pytest.mark.slow)
        for at, write in enumerate(WRITES)
    ]


@pytest.mark.guarantee("topology-1", by="kill")
@pytest.mark.parametrize("at", _places(1, 4, 10))
def test_killed_apply_is_completed_by_the_next(scene, wanted, at):
    one = scene()
    code, writes = one.apply(at=at, answered=True)
    assert (code, len(writes)) == (killed.KILLED, at + 1)
    code, rest = one.apply()
    assert (code, len(rest) - (len(WRITES) - at - 1) in (0, 1)) == (0, True)  # a purge is made again
    assert one.state() == wanted
    assert one.apply() == (0, [])


@pytest.mark.guarantee("topology-1", by="kill")
@pytest.mark.parametrize("at", _places(5, 8))
def test_killed_apply_of_saved_plan_is_resumed(scene, wanted, at):
    one = scene()
    plan = one.save()
    assert one.apply_saved(plan, at=at)[0] == killed.KILLED
    code, rest = one.apply_saved(plan)
    assert (code, len(rest) - (len(WRITES) - at) in (0, 1)) == (0, True)
    assert one.state() == wanted
    assert one.apply_saved(plan) == (0, [])


@pytest.mark.guarantee("topology-2", by="kill")
def test_apply_after_a_kill_waits_until_replicas_are_filled(own_server, tmp_path):
    """Unfilled replicas are found from the servers: nothing is kept on the machine of the killed apply."""
    entries = 100_000
    file = tmp_path / "topology.yaml"
    file.write_text("version: 1\nbuckets: {B: {}}\naggregates: {A: {origins: [{bucket: B, prefix: p}]}}\n")
    args = ["topology", "apply", "-f", str(file), "--yes", "-s", own_server.url]
    with RawClient(own_server.url) as raw:
        raw.create_bucket("B")
        for number in range(entries):
            raw.publish(f"$KV.B.k{number}", b"v")
        raw.flush()
        while raw.api("STREAM.INFO.KV_B")["state"]["messages"] < entries:
            pass
        assert killed.run(args, at=0, answered=True)[0] == killed.KILLED
        assert raw.api("STREAM.INFO.KV_A")["state"]["messages"] < entries
        assert killed.run(args) == (0, [])
        assert raw.api("STREAM.INFO.KV_A")["state"]["messages"] == entries


def test_apply_after_a_kill_reports_replicas_that_do_not_fill(raw, server, unique, tmp_path):
    bucket, aggregate, file = unique(), unique("A"), tmp_path / "t.yaml"
    raw.create_bucket(bucket, {"k": b"x" * 5000})
    file.write_text(
        f"version: 1\nname: {unique('t')}\naggregates: {{{aggregate}: {{origins: [{bucket}], max_value_size: 1KiB}}}}\n"
    )
    apply = ["topology", "apply", "-f", str(file), "--yes", "--force", "smaller-limits", "-s", server.url]
    assert killed.run(apply, at=0, answered=True)[0] == killed.KILLED
    for _ in range(2):  # it does not fill, though its lag is 0, and that is said until it has
        again = run_process(*apply, "--wait-for", "1s")
        assert (again.exit_code, f"`{bucket}`: at revision 0 of 1" in again.err) == (9, True)
    config = raw.api(f"STREAM.INFO.KV_{aggregate}")["config"]
    raw.api(f"STREAM.UPDATE.KV_{aggregate}", {**config, "max_msg_size": -1})
    file.write_text(file.read_text().replace(", max_value_size: 1KiB", ""))
    assert run_process(*apply).exit_code == 0
    assert run_process(*apply).out == "Nothing to change\n"


def test_apply_after_a_kill_reports_replicas_of_origins_out_of_view(server, unique, tmp_path):
    """What their origins hold cannot be read: the link that never connected tells."""
    file, origin = tmp_path / "t.yaml", unique()
    mirror = f"{unique('M')}: {{origin: {origin}, origin_domain: nowhere}}"
    file.write_text(f"version: 1\nname: {unique('t')}\nmirrors: {{{mirror}}}\n")
    apply = ["topology", "apply", "-f", str(file), "--yes", "--force", "unconnected", "-s", server.url]
    assert killed.run(apply, at=0, answered=True)[0] == killed.KILLED
    for _ in range(2):
        again = run_process(*apply, "--wait-for", "1s")
        assert (again.exit_code, f"`{origin}`: never connected" in again.err) == (9, True)
    assert run_process(*apply, "--no-wait").out == "Nothing to change\n"
