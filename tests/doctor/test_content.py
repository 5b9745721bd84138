"""Findings on repositories, tables, and keys that servers leave out of listings."""

import pytest

import kvctl
from kvctl.doctor import content
from kvctl.doctor.finding import ERROR, NOTE, WARNING, Finding
from kvctl.jetstream import direct_get, streams
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
    assert [key async for key in bucket.keys()] == ["a", "b", "c"]  # if servers list them, the finding can go
    assert [entry.key async for entry in bucket.history()] == ["a", "a", "b", "b", "a\x7fb", "\x7f", "c"]
    [found] = await content.of_unlisted(client.api, {stream: await streams.info(client.api, stream)})
    assert (found.severity, found.check, found.subject) == (ERROR, "unlisted-keys", bucket_name)
    assert found.evidence.startswith(r"2 of its keys have the byte 0x7f, the first is `a\x7fb`")
    assert f"`kvctl stream get {stream} 5`" in found.remedy
    message = await direct_get.from_leader(client.api, stream, seq=5)
    assert message is not None
    assert message.subject == f"$KV.{bucket_name}.a\x7fb"
    for revision in (5, 6):
        await streams.delete_message(client.api, stream, revision)
    assert await content.of_unlisted(client.api, {stream: await streams.info(client.api, stream)}) == []
