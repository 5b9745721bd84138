"""Findings on repositories."""

import pytest

import kvctl
from kvctl.doctor import repositories
from kvctl.doctor.finding import ERROR, NOTE, WARNING, Finding
from kvctl.jetstream import streams
from kvctl.versions import catalog
from kvctl.versions.branch import branch_state, staging
from kvctl.versions.branch.branch_state import COLLECTION, Collection
from kvctl.versions.branch.staging import STAGING
from kvctl.versions.config import LAYOUT, RepositoryConfig, stream_name
from kvctl.versions.model import encode_staged
from kvctl.versions.refs import COMMITS
from kvctl.versions.tree.objects import OBJECTS


@pytest.fixture
async def name(client, unique):
    """Create a repository with two commits, a tag, and a staged change."""
    name = unique("R")
    repository = await kvctl.Repositories(client).create(name)
    await repository.put("main", "key", b"value")
    await repository.commit("main", "one")
    await repository.create_tag("v1")
    await repository.put("main", "key", b"other")
    return name


async def of(client: kvctl.Client, name: str) -> list[Finding]:
    info = await streams.info(client.api, stream_name(name))
    return await repositories.examine(client.api, {info["config"]["name"]: info})


async def test_healthy_repository_has_no_finding(client, name):
    assert await of(client, name) == []


@pytest.mark.guarantee("versions-19")
async def test_dangling_references_are_findings(client, name):
    repository = await kvctl.Repositories(client).open(name)
    first = (await repository.show("main~1")).id
    await repository.store.delete(COMMITS, bytes.fromhex(first))
    (parent,) = await of(client, name)
    assert (parent.severity, parent.check) == (ERROR, "broken-reference")
    assert f"refers to commit `{first}`, which is missing" in parent.evidence
    last = await repository.show("main")
    await repository.store.delete(OBJECTS, bytes.fromhex(last.root))
    (_, tree) = sorted(await of(client, name), key=lambda item: "object" in item.evidence)
    assert tree.evidence == f"Commit `{last.id}` needs object `{last.root}`, which is missing"
    await repository.store.delete(COMMITS, bytes.fromhex(last.id))
    assert {item.evidence.partition(" refers")[0] for item in await of(client, name)} == {"Branch `main`", "Tag `v1`"}


async def test_undecodable_record_is_a_finding(client, name):
    repository = await kvctl.Repositories(client).open(name)
    await repository.store.set(STAGING, b"main", b"{}")
    assert [(item.severity, item.check) for item in await of(client, name)] == [(ERROR, "broken-record")]


async def test_branch_without_staging_record_is_a_finding(client, name):
    repository = await kvctl.Repositories(client).open(name)
    await repository.store.delete(STAGING, b"main")
    found = await of(client, name)
    assert [item.evidence for item in found if item.severity is ERROR] == ["Branch `main` has no staging record"]


async def test_orphaned_epochs_are_named_and_collected(client, name):
    repository = await kvctl.Repositories(client).open(name)
    await repository.store.set(staging.partition_of(staging.new_epoch()), b"key", encode_staged(b"left"))
    (left,) = await of(client, name)
    assert (left.severity, left.check, left.remedy) == (
        NOTE,
        "orphaned-epochs",
        f"Remove the remains with `kvctl repo gc {name}`",
    )


async def test_interrupted_collection_is_a_finding(client, name):
    repository = await kvctl.Repositories(client).open(name)
    held = await branch_state.collections(repository.store)
    begun = Collection(held.collection.begun + 1, deleting=True)
    await repository.store.set(COLLECTION, COLLECTION, begun.encode())
    (found,) = await of(client, name)
    assert found.check == "interrupted-gc"
    await repository.gc()
    assert await of(client, name) == []


@pytest.mark.parametrize(
    ("field", "value"), [("max_age", 10**12), ("max_msgs_per_subject", 5), ("allow_atomic", False)]
)
async def test_settings_that_break_a_repository_are_findings(client, name, field, value):
    config = (await streams.info(client.api, stream_name(name)))["config"]
    await streams.update(client.api, {**config, field: value})
    found = [item for item in await of(client, name) if item.check == "repository-changed"]
    assert [item.severity for item in found] == [ERROR]
    assert f"`{field}`" in found[0].evidence


async def test_incomplete_or_newer_repository_is_a_finding(client, name):
    other = f"{name}-2"
    await catalog.create(client.api, RepositoryConfig(other))
    assert [(item.severity, item.check) for item in await of(client, other)] == [(WARNING, "unfinished")]
    config = (await streams.info(client.api, stream_name(name)))["config"]
    await streams.update(client.api, {**config, "metadata": {**config["metadata"], LAYOUT: "2"}})
    assert [(item.severity, item.check) for item in await of(client, name)] == [(NOTE, "newer-kvctl")]
