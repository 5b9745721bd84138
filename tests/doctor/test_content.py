"""Findings on buckets, tables, repositories, and keys that servers leave out of listings."""

from typing import Any

import pytest

import kvctl
from kvctl.doctor import content
from kvctl.doctor.content import ERROR, NOTE, WARNING, Finding, of_buckets, of_offline, ordered
from kvctl.jetstream import direct_get, streams
from kvctl.kv.config import BucketConfig
from kvctl.tables import catalog as tables
from kvctl.tables import config as table_config
from kvctl.tables.config import TableConfig, partition_stream
from kvctl.versions import catalog
from kvctl.versions.branch import branch_state, epochs
from kvctl.versions.branch.branch_state import COLLECTION, Collection
from kvctl.versions.catalog import LAYOUT, RepositoryConfig, stream_name
from kvctl.versions.model import encode_staged
from kvctl.versions.refs import BRANCHES, COMMITS
from kvctl.versions.tree.objects import OBJECTS
from tests.tables.test_catalog import Killed, killed_after

MIRROR = {"name": "KV_M", "mirror": {"name": "KV_B"}, "max_msgs_per_subject": 1, "allow_direct": True}


def info(messages: int = 0, size: int = 0, cluster: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    config = BucketConfig("B").to_stream() | changes
    found: dict[str, Any] = {"config": config, "state": {"messages": messages, "bytes": size}}
    return found | ({"cluster": cluster} if cluster else {})


def said(infos: dict[str, Any], servers: int = 1) -> list[tuple[str, str]]:
    found = ordered(of_buckets({infos["config"]["name"]: infos}, servers))
    assert {finding.subject for finding in found} <= {infos["config"]["name"].removeprefix("KV_")} | {"KV_B"}
    return [(str(finding.severity), finding.check) for finding in found]


def peers(*away: str, leader: str = "n1") -> dict[str, Any]:
    others = [{"name": name, "current": name not in away, "lag": 0} for name in ("n2", "n3")]
    return {"name": "c", "replicas": others, **({"leader": leader} if leader else {})}


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (info(), []),
        (info(9, 700, max_bytes=1000), []),
        (info(9, 800, max_bytes=1000), [("warning", "nearly-full")]),
        (info(9, 1000, max_bytes=1000), [("error", "nearly-full")]),
        (info(subject_transform={"src": ">", "dest": ">"}), []),
        (info(9, 900, max_bytes=1000, discard="old"), [("warning", "discards-old"), ("warning", "nearly-full")]),
        (info(9, 90, max_msgs=10), [("warning", "nearly-full"), ("note", "max-entries")]),
        (info(allow_direct=False), [("warning", "no-direct-get")]),
        (info(allow_rollup_hdrs=False), [("warning", "no-rollup")]),
        (info(metadata={"kvctl.unfinished": "x"}), [("warning", "unfinished")]),
        (info(max_msgs_per_subject=-1), [("note", "no-bucket")]),
        ({**info(), "config": MIRROR}, [("note", "mirror-name")]),
        ({**info(), "config": MIRROR | {"name": "M", "deny_purge": True}}, [("note", "deny-purge")]),
        (info(subject_transform={"src": "$KV.B.>", "dest": "$KV.B.x.>"}), [("error", "renamed-keys")]),
        (info(subjects=[], sources=[{"name": "KV_O", "opt_start_seq": 1}]), []),
        (info(subjects=[], sources=[{"name": "KV_O"}]), [("warning", "no-first-entry")]),
        (
            {**info(subjects=[], sources=[{"name": "KV_O"}]), "sources": [{"name": "KV_O", "seq": 5}]},
            [("note", "no-first-entry")],
        ),
        (info(num_replicas=3, cluster=peers()), []),
        (info(num_replicas=3, cluster=peers("n2")), [("warning", "server-away")]),
        (info(cluster=peers("n2", "n3", leader="")), [("error", "no-leader")]),
    ],
)
def test_findings_of_a_bucket(stream, expected):
    assert said(stream) == expected


def test_single_stream_replica_is_a_finding_in_a_cluster():
    assert said(info(), servers=3) == [("warning", "one-replica")]
    assert said(info(), servers=2) == []
    assert said(info(num_replicas=3), servers=3) == []


def test_loss_of_quorum_is_announced():
    (finding,) = of_buckets({"KV_B": info(num_replicas=3, cluster=peers("n2"))}, 3)
    assert finding.evidence == "`n2` of 3 servers is offline or far behind: if one more fails, writes stop"


@pytest.mark.parametrize(
    ("leader", "away", "text"),
    [
        ("", ["n2", "n3"], "`n2`, `n3` of 3 servers are offline: without a leader, writes and listings fail"),
        ("n1", ["n2", "n3"], "`n2`, `n3` of 3 servers are offline: without a leader, writes and listings fail"),
        ("", [], "It has no leader: writes and listings fail"),
    ],
)
def test_servers_without_a_majority_are_one_finding(leader, away, text):
    names = ("n2", "n3") if leader else ("n1", "n2", "n3")
    others = [{"name": name, "current": name not in away, "offline": name in away} for name in names]
    (finding,) = of_buckets(
        {"KV_B": info(num_replicas=3, cluster={"name": "c", "leader": leader, "replicas": others})}, 3
    )
    assert (finding.severity, finding.check, finding.evidence) == (ERROR, "no-leader", text)


def test_servers_are_counted_in_the_cluster_of_the_bucket():
    here, there = peers(), {"name": "far", "leader": "far1"}
    infos = {"KV_A": info(num_replicas=3, cluster=here), "KV_B": info(cluster=there)}
    assert list(of_buckets(infos, 3, "c")) == []


@pytest.mark.parametrize(
    ("known", "cluster", "origin", "remedy", "evidence"),
    [
        (
            True,
            "nyc",
            None,
            "Start `n9`",
            "`M` in cluster `nyc` is offline: its only server `n9` does not answer, and nothing arrives from `B`",
        ),
        (
            False,
            "nyc",
            "KV_B",
            "Start its servers in cluster `nyc`",
            "`M`, a mirror of `B` in cluster `nyc`, is offline: its servers do not answer",
        ),
        (
            False,
            None,
            None,
            "Start its servers",
            "`M` is offline: its servers do not answer; it may be a mirror or an aggregate",
        ),
    ],
)
def test_offline_stream_has_its_cluster_and_remedy(known, cluster, origin, evidence, remedy):
    away = {"name": "other", "replicas": [{"name": "n9", "offline": True}]}
    finding = of_offline("M", {**info(cluster=away), "config": MIRROR} if known else None, cluster, origin)
    assert (finding.check, finding.subject, finding.evidence, finding.remedy) == ("offline", "M", evidence, remedy)


def test_findings_are_ordered_and_unique():
    note, warning, error = (Finding(severity, "c", "s", "e") for severity in (NOTE, WARNING, ERROR))
    assert ordered([note, warning, note, error]) == [error, warning, note]


@pytest.fixture
async def repo_name(client, unique):
    """Create a repository with two commits, a tag, and a staged change."""
    name = unique("R")
    repository = await kvctl.Repositories(client).create(name)
    await repository.put("main", "key", b"value")
    await repository.commit("main", "one")
    await repository.create_tag("v1")
    await repository.put("main", "key", b"other")
    return name


async def of_repository(client: kvctl.Client, name: str) -> list[Finding]:
    info = await streams.info(client.api, stream_name(name))
    return await content.of_repositories(client.api, {info["config"]["name"]: info})


async def test_healthy_repository_has_no_finding(client, repo_name):
    assert await of_repository(client, repo_name) == []


@pytest.mark.guarantee("versions-19")
async def test_dangling_references_are_findings(client, repo_name):
    repository = await kvctl.Repositories(client).open(repo_name)
    first = (await repository.show("main~1")).id
    await repository.store.delete(COMMITS, bytes.fromhex(first))
    (parent,) = await of_repository(client, repo_name)
    assert (parent.severity, parent.check) == (ERROR, "broken-reference")
    assert f"refers to commit `{first}`, which is missing" in parent.evidence
    last = await repository.show("main")
    await repository.store.delete(OBJECTS, bytes.fromhex(last.root))
    (_, tree) = sorted(await of_repository(client, repo_name), key=lambda item: "object" in item.evidence)
    assert tree.evidence == f"Commit `{last.id}` needs object `{last.root}`, which is missing"
    await repository.store.delete(COMMITS, bytes.fromhex(last.id))
    assert {item.evidence.partition(" refers")[0] for item in await of_repository(client, repo_name)} == {
        "Branch `main`",
        "Tag `v1`",
    }


async def test_undecodable_record_is_a_finding(client, repo_name):
    repository = await kvctl.Repositories(client).open(repo_name)
    await repository.store.set(BRANCHES, b"main", b"{}")
    assert [(item.severity, item.check) for item in await of_repository(client, repo_name)] == [
        (ERROR, "broken-record")
    ]


async def test_orphaned_epochs_are_named_and_collected(client, repo_name):
    repository = await kvctl.Repositories(client).open(repo_name)
    await repository.store.set(epochs.partition_of(epochs.new_epoch()), b"key", encode_staged(b"left"))
    (left,) = await of_repository(client, repo_name)
    assert (left.severity, left.check, left.remedy) == (
        NOTE,
        "orphaned-epochs",
        f"Remove the remains with `kvctl repo gc {repo_name}`",
    )


async def test_interrupted_collection_is_a_finding(client, repo_name):
    repository = await kvctl.Repositories(client).open(repo_name)
    held = await branch_state.collections(repository.store)
    begun = Collection(held.collection.begun + 1, deleting=True)
    await repository.store.set(COLLECTION, COLLECTION, begun.encode())
    (found,) = await of_repository(client, repo_name)
    assert found.check == "interrupted-gc"
    await repository.gc()
    assert await of_repository(client, repo_name) == []


@pytest.mark.parametrize(
    ("field", "value"), [("max_age", 10**12), ("max_msgs_per_subject", 5), ("allow_atomic", False)]
)
async def test_settings_that_break_a_repository_are_findings(client, repo_name, field, value):
    config = (await streams.info(client.api, stream_name(repo_name)))["config"]
    await streams.update(client.api, {**config, field: value})
    found = [item for item in await of_repository(client, repo_name) if item.check == "repository-changed"]
    assert [item.severity for item in found] == [ERROR]
    assert f"`{field}`" in found[0].evidence


async def test_incomplete_or_newer_repository_is_a_finding(client, repo_name):
    other = f"{repo_name}-2"
    await catalog.create(client.api, RepositoryConfig(other))
    assert [(item.severity, item.check) for item in await of_repository(client, other)] == [(WARNING, "unfinished")]
    config = (await streams.info(client.api, stream_name(repo_name)))["config"]
    await streams.update(client.api, {**config, "metadata": {**config["metadata"], LAYOUT: "2"}})
    assert [(item.severity, item.check) for item in await of_repository(client, repo_name)] == [(NOTE, "newer-kvctl")]


async def of_table(client: kvctl.Client, name: str) -> list[Finding]:
    listed, _ = await kvctl_streams(client)
    return [item for item in content.of_tables(listed) if item.subject == name]


async def kvctl_streams(client: kvctl.Client) -> tuple[dict[str, dict[str, object]], list[str]]:
    from kvctl.jetstream import streams

    found = await streams.listing(client.api)
    return {info["config"]["name"]: info for info in found.answering}, [*found.silent]


async def test_healthy_table_has_no_finding(client, unique):
    for apart in (False, True):
        name = unique("T")
        await tables.create(client.api, TableConfig(name, partitions=3, apart=apart))
        assert await of_table(client, name) == []


async def test_interrupted_creation_and_deletion_are_findings(client, unique, monkeypatch):
    config = TableConfig(unique("T"), partitions=3, apart=True)
    with monkeypatch.context() as patch:
        killed_after(client, patch, 2)
        with pytest.raises(Killed):
            await tables.create(client.api, config)
    (finding,) = await of_table(client, config.name)
    assert (finding.severity, finding.check) == (WARNING, "unfinished")
    assert f"`kvctl table create {config.name}`" in finding.remedy
    await tables.create(client.api, config)
    with monkeypatch.context() as patch:
        killed_after(client, patch, 2)
        with pytest.raises(Killed):
            await tables.delete(client.api, config.name)
    (finding,) = await of_table(client, config.name)
    assert f"`kvctl table delete {config.name}`" in finding.remedy
    await tables.delete(client.api, config.name)
    assert await of_table(client, config.name) == []


async def test_deleted_partition_streams_are_findings(client, unique, raw):
    name = unique("T")
    await tables.create(client.api, TableConfig(name, partitions=3, apart=True))
    raw.api(f"STREAM.DELETE.{partition_stream(name, 1)}")
    (finding,) = await of_table(client, name)
    assert (finding.severity, finding.check) == (ERROR, "table-damaged")
    assert partition_stream(name, 1) in finding.evidence
    raw.api(f"STREAM.DELETE.{table_config.stream_name(name)}")
    (finding,) = await of_table(client, name)
    assert (finding.severity, finding.check) == (WARNING, "table-leftovers")


async def test_settings_that_break_a_table_are_findings(client, unique, raw):
    name = unique("T")
    made, _ = await tables.create(client.api, TableConfig(name))
    raw.api(
        f"STREAM.UPDATE.{table_config.stream_name(name)}",
        {**made.info["config"], "allow_atomic": False, "max_msgs_per_subject": 5},
    )
    findings = await of_table(client, name)
    assert {finding.check for finding in findings} == {"table-changed"}
    assert [finding.evidence.split(":")[0] for finding in findings] == [
        "`max_msgs_per_subject` is 5",
        "`allow_atomic` is off",
    ]


async def test_keys_with_byte_7f_are_reported_with_their_revision(raw, client, bucket_name):
    stream = f"KV_{bucket_name}"
    raw.create_bucket(bucket_name, max_msgs_per_subject=2, deny_delete=False)
    for key in ("a", "a", "b", "b"):
        raw.put(bucket_name, key, b"v")
    assert await content.of_unlisted(client.api, {stream: await streams.info(client.api, stream)}) == []
    for key in ("a\x7fb", "\x7f", "c"):
        raw.put(bucket_name, key, b"v")
    bucket = client.bucket(bucket_name)
    indexed = await streams.subjects(client.api, stream)
    assert len(indexed) == 3  # if servers list them, the finding can go
    assert [key async for key in bucket.keys()] == ["a", "b", "c", "a\x7fb", "\x7f"]
    assert [entry.key async for entry in bucket.history()] == ["a", "a", "b", "b", "a\x7fb", "\x7f", "c"]
    [found] = await content.of_unlisted(client.api, {stream: await streams.info(client.api, stream)})
    assert (found.severity, found.check, found.subject) == (ERROR, "unlisted-keys", bucket_name)
    assert found.evidence.startswith(r"2 of its keys have the byte 0x7f, the first is `a\x7fb`")
    assert f"`kvctl stream get {stream} 5`" in found.remedy
    message = await direct_get.from_leader(client.api, stream, seq=5)
    assert message.subject == f"$KV.{bucket_name}.a\x7fb"
    for revision in (5, 6):
        await streams.delete_message(client.api, stream, revision)
    assert await content.of_unlisted(client.api, {stream: await streams.info(client.api, stream)}) == []
