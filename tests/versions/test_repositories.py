"""Repositories of a connection: created once, found by name, listed, deleted, completed after a kill."""

import pytest

import kvctl
from kvctl.errors import (
    PermissionDenied,
    ReadOnly,
    RefusedError,
    RepositoryExists,
    RepositoryNotFound,
    ServerError,
    UsageError,
)
from kvctl.jetstream import streams
from kvctl.kv import stream_kind
from kvctl.versions import catalog
from kvctl.versions.catalog import LAYOUT, RepositoryConfig, check_repository
from kvctl.versions.repositories import default_author
from tests.support.restricted import restricted


async def test_repository_is_created_once_and_begins_with_a_commit(client, unique):
    repositories, name = kvctl.Repositories(client), unique("R")
    made = await repositories.create(name, author="ann", description="configuration")
    with pytest.raises(UsageError, match="The author is not UTF-8"):
        await repositories.create(unique("R"), author="\udcff")
    again = await repositories.create(RepositoryConfig(name, settings={"description": "configuration"}))
    assert await again.branches() == await made.branches()
    assert [commit.author async for _, commit in (await repositories.open(name)).log("main")] == ["ann"]
    with pytest.raises(RepositoryExists, match="description: configuration -> none"):
        await repositories.create(name)
    (found,) = [item for item in await repositories.listing() if item.config.name == name]
    assert found.config.settings == {"description": "configuration"}
    await repositories.delete(name)
    for call in (repositories.open, repositories.delete):
        with pytest.raises(RepositoryNotFound):
            await call(name)


async def test_repository_stream_is_recognised_by_its_metadata(client, unique):
    name = unique("R")
    await kvctl.Repositories(client).create(name, metadata={"team": "a"})
    config = (await catalog.find(client.api, name)).info["config"]
    assert (stream_kind.kind_of(config), stream_kind.bucket_name(config, stream_kind.kind_of(config))) == (
        "repository",
        name,
    )
    assert stream_kind.own_metadata(config) == {"team": "a"}
    assert config["first_seq"] > 10**15  # microseconds: no two lives of a name share a sequence
    assert (config["allow_atomic"], config["allow_msg_ttl"], config["max_msgs_per_subject"]) == (True, True, 1)
    with pytest.raises(RefusedError, match="is a repository"):
        await client.bucket(name).put("key", b"value")


@pytest.mark.guarantee("versions-15")
async def test_commits_of_a_deleted_repository_do_not_reappear(client, unique):
    repositories, name = kvctl.Repositories(client), unique("R")
    before = await repositories.create(name)
    await before.put("main", "key", b"value")
    await before.commit("main", "one")
    await repositories.delete(name)
    after = await repositories.create(name)
    assert await after.entries("main") == []
    assert len([commit async for commit in after.log("main")]) == 1


async def test_killed_creation_is_completed(client, unique):
    repositories, name = kvctl.Repositories(client), unique("R")
    await catalog.create(client.api, RepositoryConfig(name))  # killed before its first commit
    with pytest.raises(RepositoryNotFound, match="is incomplete"):
        await repositories.open(name)
    await repositories.create(name)
    assert list(await (await repositories.open(name)).branches()) == ["main"]


async def test_repository_without_branches_is_not_initialised_again(client, unique):
    repositories, name = kvctl.Repositories(client), unique("R")
    made = await repositories.create(name)
    await made.create_tag("v1")
    await made.delete_branch("main")
    await repositories.create(name)
    assert (await made.branches(), list(await made.tags())) == ({}, ["v1"])


async def test_repository_of_a_newer_kvctl_is_refused(client, unique):
    repositories, name = kvctl.Repositories(client), unique("R")
    await repositories.create(name)
    config = (await catalog.find(client.api, name)).info["config"]
    await streams.update(client.api, {**config, "metadata": {**config["metadata"], LAYOUT: "2"}})
    with pytest.raises(RefusedError, match="newer version of kvctl"):
        await repositories.open(name)


async def test_read_only_connection_writes_nothing(client, server, unique):
    name = unique("R")
    await kvctl.Repositories(client).create(name)
    async with kvctl.connect(server.url, read_only=True) as reader:
        repositories = kvctl.Repositories(reader)
        opened = await repositories.open(name)
        assert await opened.entries("main") == []
        writes = (
            opened.put("main", "key", b""),
            opened.put_many("main", dict.fromkeys("abc", b"")),
            opened.reset("main"),
        )
        for write in (*writes, repositories.create(name), repositories.delete(name)):
            with pytest.raises(ReadOnly):
                await write


async def test_full_repository_hints_at_its_limit(client, unique):
    name = unique("R")
    made = await kvctl.Repositories(client).create(name, max_bytes=5000)
    with pytest.raises(ServerError, match="maximum bytes") as refused:
        await made.put("main", "key", b"v" * 5000)
    assert f"kvctl stream edit KVR_{name} --set max_bytes=BYTES --force foreign-kind" in str(refused.value.hint)


async def test_permission_error_names_all_subjects_of_the_repository():
    """One record's subject is not enough: the next epoch has another."""
    with restricted('publish: {deny: "$KVR.R.>"}') as users:
        async with kvctl.connect(users.everything) as client, kvctl.connect(users.some) as other:
            await kvctl.Repositories(client).create("R")
            repository = await kvctl.Repositories(other).open("R")
            for write in (repository.put("main", "a", b""), repository.reset("main"), repository.create_tag("v1")):
                with pytest.raises(PermissionDenied, match=r"`\$KVR\.R\.\S+`") as refused:
                    await write
                assert "publish to `$KVR.R.>`" in str(refused.value.hint)


async def test_mirror_of_a_repository_is_read_only(client, unique):
    repositories, name = kvctl.Repositories(client), unique("R")
    made = await repositories.create(name)
    await made.put("main", "key", b"value")
    await made.commit("main", "one")
    await kvctl.create_mirror(client, kvctl.Mirror(f"{name}-M", kvctl.Origin(name)))
    mirror = await repositories.open(f"{name}-M")
    assert [entry.value for entry in await mirror.entries("main")] == [b"value"]
    for write in (
        mirror.put("main", "key", b""),
        mirror.put_many("main", dict.fromkeys("abc", b"")),
        mirror.reset("main"),
        mirror.create_tag("v1"),
        client.bucket(f"{name}-M").put("key", b""),
    ):
        with pytest.raises(ReadOnly):
            await write
    with pytest.raises(RefusedError, match="is a mirror"):
        await repositories.delete(f"{name}-M")


async def test_empty_mirror_is_reported_as_empty(client, unique):
    name = unique("M")
    await streams.create(client.api, {"name": name, "mirror": {"name": f"KVR_{name}-GONE"}})
    with pytest.raises(RepositoryNotFound, match="is still empty") as refused:
        await kvctl.Repositories(client).open(name)
    assert "mirror show" in str(refused.value.hint)


def test_repository_names_are_checked():
    assert check_repository("a-B_1") == "a-B_1"
    for name in ("", "a.b", "a@b", "a b", "x" * 252):
        with pytest.raises(UsageError):
            check_repository(name)
    with pytest.raises(UsageError, match="not a setting"):
        RepositoryConfig("r", settings={"history": 5})


def test_author_can_be_set(monkeypatch):
    monkeypatch.setenv("KVCTL_AUTHOR", "ann@example.com")
    assert default_author() == "ann@example.com"
    monkeypatch.delenv("KVCTL_AUTHOR")
    assert "@" in default_author()
