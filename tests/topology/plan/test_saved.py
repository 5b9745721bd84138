"""Saved plans: unchanged when read back, private, and refused if damaged or newer."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import kvctl
from kvctl.documents import parser
from kvctl.errors import UsageError
from kvctl.topology.apply.builders import create_mirror
from kvctl.topology.model.file import read_topology
from kvctl.topology.model.origins import Mirror, Origin
from kvctl.topology.plan import planner, saved
from kvctl.topology.plan.saved import SavedPlan


async def written_plan(client: kvctl.Client, path: Path, unique: Callable[..., str]) -> SavedPlan:
    bucket, mirror = unique(), unique("M")
    await client.create_bucket(bucket)
    await create_mirror(client, Mirror(mirror, Origin(bucket)))
    text = (
        f"version: 1\nbuckets: {{{bucket}: {{storage: memory}}, {unique()}: {{ttl: 90s}}}}\n"
        f"mirrors: {{{mirror}: {{origin: {bucket}, description: é}}}}"
    )
    document = parser.parse(text.encode(), "t.yaml")
    found = await planner.plan(read_topology(document), {"": client.api})
    result = SavedPlan.of(document, found, {"": client.api}, prune=True, forced=("cycle",))
    saved.save(str(path), result)
    return result


async def test_plan_file_round_trips(client, tmp_path, unique):
    path = tmp_path / "x.plan"
    for _ in range(2):  # also over an existing one
        written = await written_plan(client, path, unique)
    assert path.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["x.plan"]
    read = saved.load(path.read_bytes(), "x.plan")
    assert read == written
    assert read.topology() == written.topology()
    assert (read.prune, read.forced, read.source) == (True, ("cycle",), "t.yaml")
    assert sorted(str(action) for action, _ in read.ends.values()) == ["create", "recreate", "recreate"]
    now = await saved.renewed(read, {"": client.api})
    assert {change.where: change.after for change in now.changes} == {
        where: after for where, (_, after) in read.ends.items()
    }


async def test_invalid_plan_file_is_refused(client, tmp_path, unique):
    path = tmp_path / "x.plan"
    await written_plan(client, path, unique)
    content = path.read_bytes()
    newer = json.dumps({**json.loads(content), "version": 2}).encode()
    for damaged, message in (
        (b"version: 1\nbuckets: {}", "is not a saved plan"),
        (b"", "is not a saved plan"),
        (newer, r"version `2`, but this kvctl reads version 1"),
        (content[: len(content) // 2], "x.plan"),
        (content.replace(b"90", b"91"), "is damaged"),
        (content.replace(b'"sha256"', b'"sha255"'), "is damaged"),
    ):
        with pytest.raises(UsageError, match=message):
            saved.load(damaged, "x.plan")


async def test_unwritable_plan_file_is_a_usage_error(client, tmp_path):
    with pytest.raises(UsageError, match="Cannot write"):
        saved.save(str(tmp_path / "none" / "x.plan"), SavedPlan({}, "t.yaml"))
