"""Status of replicas as rows: selection, contexts, and changes since the last look."""

from collections.abc import Callable
from typing import Any

import pytest

import kvctl
from kvctl.documents.parser import Document
from kvctl.errors import BucketNotFound
from kvctl.topology.apply.builders import create_aggregate, create_mirror
from kvctl.topology.health.status import FIELDS, GONE, Wanted, changes, status
from kvctl.topology.model.file import Topology, read_topology
from kvctl.topology.model.origins import Aggregate, External, Mirror, Origin

Names = Callable[..., str]


def topology_of(**file: Any) -> Topology:
    return read_topology(Document({"version": 1, **file}, "t.yaml"))


async def test_status_of_origin_has_its_replicas(client, unique):
    origin, mirror, aggregate = unique("O"), unique("M"), unique("A")
    await (await client.create_bucket(origin)).put("k", b"v")
    await create_mirror(client, Mirror(mirror, Origin(origin)))
    await create_aggregate(client, Aggregate(aggregate, (Origin(origin, keys=("a.>",), prefix="p"),)))
    apis = {"": client.api}
    rows = {row["replica"]: row for row in await status(apis, Wanted([origin]))}
    assert set(rows) == {mirror, aggregate}
    assert [list(row) for row in rows.values()] == [list(FIELDS)] * 2
    assert [row["replica"] for row in await status(apis, Wanted([mirror]))] == [mirror]
    assert (rows[mirror]["state"], rows[mirror]["revision"], rows[mirror]["origin_revision"]) == ("ok", 1, 1)
    assert (rows[aggregate]["keys"], rows[aggregate]["prefix"], rows[aggregate]["map"]) == (["a.>"], "p", None)
    assert rows[aggregate]["transforms"] == [{"src": f"$KV.{origin}.a.>", "dest": f"$KV.{aggregate}.p.>"}]
    with pytest.raises(BucketNotFound):
        await status(apis, Wanted([unique("NONE")]))
    assert await status(apis, Wanted([await _alone(client, unique)])) == []


async def _alone(client: kvctl.Client, unique: Names) -> str:
    return (await client.create_bucket(unique("ALONE"))).name


async def test_status_of_file_has_its_replicas_by_context(leaf, unique):
    origin, mirror, other = unique("O"), unique("M"), unique("M")
    async with kvctl.connect(leaf.contexts["hub"]) as hub, kvctl.connect(leaf.contexts["leaf"]) as edge:
        await hub.create_bucket(origin)
        await create_mirror(edge, Mirror(mirror, Origin(origin, external=External.of_domain("hub"))))
        await create_mirror(hub, Mirror(other, Origin(origin)))
        file = topology_of(
            contexts={"hub": {}, "edge": {}},
            buckets={origin: {"in": "hub"}},
            mirrors={
                mirror: {"origin": origin, "origin_domain": "hub", "in": "edge"},
                other: {"origin": origin, "in": "edge"},
            },
        )
        rows = {row["replica"]: row for row in await status({"hub": hub.api, "edge": edge.api}, Wanted((), file))}
        await edge.delete_bucket(mirror)
        await hub.delete_bucket(other)
    assert {name: row["state"] for name, row in rows.items()} == {mirror: "ok", other: "absent"}
    where = ("context", "domain", "origin_context", "origin_domain")
    assert [rows[mirror][name] for name in where] == ["edge", "leaf", "hub", "hub"]


def row(replica: str, **fields: Any) -> dict[str, Any]:
    return {
        **dict.fromkeys(FIELDS),
        "replica": replica,
        "stream": replica,
        "keys": [],
        "transforms": [],
        "state": "ok",
        **fields,
    }


def test_status_changes_ignore_moving_fields():
    before = [row("A", last_seen=0.1, revision=5), row("B"), row("C")]
    after = [row("A", last_seen=0.9, revision=5), row("B", state="stalled"), row("D")]
    assert changes([], before) == before
    assert changes(before, after) == [after[1], after[2], {**before[2], "state": GONE}]
    assert changes(after, after) == []
