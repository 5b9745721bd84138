"""Backups that are whole or not there, restores that come out whole or leave nothing."""

import asyncio
import json
import os
import stat
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import kvctl
from kvctl.documents import checksum
from kvctl.errors import (
    BucketExists,
    BucketNotFound,
    ConflictError,
    HazardRefused,
    ReadOnly,
    RefusedError,
    ServerError,
    UsageError,
)
from kvctl.jetstream import streams
from kvctl.jetstream.server_snapshot import CHUNK, RestoreSession
from kvctl.kv import catalog
from kvctl.kv.config import BucketConfig, Kind
from kvctl.kv.maintenance import bucket_backup, copy_bucket
from kvctl.kv.maintenance.bucket_backup import CONFIG, DATA, MANIFEST

MINUTE = timedelta(minutes=1)


async def filled(client: kvctl.Client, name: str, keys: int = 50, size: int = 10, **settings: Any) -> kvctl.Bucket:
    """A bucket with keys of random bytes, which do not compress, written twice."""
    bucket = await client.create_bucket(name, **settings)
    await bucket.put_many((f"k.{number}", os.urandom(size)) for number in [*range(keys), *range(keys)])
    return bucket


async def contents(bucket: kvctl.Bucket) -> list[tuple[Any, ...]]:
    """Every entry the bucket holds, with revision and time."""
    return [tuple(entry[1:6]) async for entry in bucket.history()]


async def lost(client: kvctl.Client, name: str, directory: Path, **settings: Any) -> list[tuple[Any, ...]]:
    """What a bucket held that was backed up and is gone."""
    bucket = await filled(client, name, **settings)
    before = await contents(bucket)
    await bucket_backup.backup(client.api, name, directory)
    await bucket.destroy()
    return before


@pytest.fixture
def directory(tmp_path):
    """Where a backup goes."""
    return tmp_path / "backup"


# -- the way there and back --------------------------------------------------------------------------------


async def test_a_restored_bucket_is_what_was_backed_up(client, bucket_name, directory):
    settings = {
        "history": 3,
        "ttl": timedelta(days=1),
        "marker_ttl": MINUTE,
        "max_value_size": 5000,
        "max_bytes": 10**6,
        "metadata": {"owner": "a"},
        "republish": kvctl.Republish(f"$KV.{bucket_name}.>", f"c.{bucket_name}.>"),
        "compress": True,
        "atomic": True,
        "description": "d",
    }
    bucket = await filled(client, bucket_name, **settings)
    await bucket.delete("k.1")
    await bucket.purge("k.2")
    before, status = await contents(bucket), await bucket.status()
    made = await bucket_backup.backup(client.api, bucket_name, directory)
    await bucket.destroy()
    done = await bucket_backup.restore(client.api, directory)
    assert await contents(client.bucket(bucket_name)) == before
    assert (await client.bucket(bucket_name).status()).config == status.config
    assert (made.messages, made.last_revision, made.keys) == (len(before), status.last_revision, 50)
    assert (done.manifest, done.replaced) == (made, False)
    assert await client.bucket(bucket_name).put("new", b"1") == status.last_revision + 1


async def test_an_empty_bucket_goes_there_and_back(client, bucket_name, directory):
    bucket = await client.create_bucket(bucket_name, metadata={"a": "1"})
    await bucket_backup.backup(client.api, bucket_name, directory)
    await bucket.destroy()
    await bucket_backup.restore(client.api, directory)
    assert (await client.bucket(bucket_name).status()).values == 0


async def test_a_bucket_whose_entries_are_gone_keeps_counting(client, raw, bucket_name, directory):
    bucket = await filled(client, bucket_name)
    raw.api(f"STREAM.PURGE.KV_{bucket_name}")
    await bucket_backup.backup(client.api, bucket_name, directory)
    await bucket.destroy()
    await bucket_backup.restore(client.api, directory)
    assert await client.bucket(bucket_name).put("k", b"v") == 101


async def test_limits_below_what_is_held_do_not_stand_in_the_way(client, bucket_name, directory):
    bucket = await filled(client, bucket_name, size=400, history=2)
    edit = await catalog.plan_edit(client.api, bucket_name, {"max_value_size": 10, "max_bytes": 1000})
    await catalog.apply_edit(client.api, edit)
    before = await contents(bucket)
    await bucket_backup.backup(client.api, bucket_name, directory)
    await bucket.destroy()
    await bucket_backup.restore(client.api, directory)
    assert await contents(client.bucket(bucket_name)) == before
    assert (await client.bucket(bucket_name).status()).config["max_bytes"] == 1000


async def test_keys_past_their_ttl_may_be_gone(client, bucket_name, directory):
    bucket = await client.create_bucket(bucket_name, marker_ttl=MINUTE)
    await bucket.create("short", b"1", ttl=timedelta(seconds=1))
    await bucket.put("long", b"2")
    await bucket_backup.backup(client.api, bucket_name, directory)
    await bucket.destroy()
    await asyncio.sleep(1.1)
    await bucket_backup.restore(client.api, directory)
    assert [key async for key in client.bucket(bucket_name).keys()] == ["long"]


async def test_key_that_expired_since_the_backup_is_not_damage(client, bucket_name, directory):
    bucket = await filled(client, bucket_name, ttl=timedelta(seconds=1))
    await bucket_backup.backup(client.api, bucket_name, directory)
    await bucket.destroy()
    await asyncio.sleep(1.1)
    done = await bucket_backup.restore(client.api, directory)
    assert done.info["config"]["max_age"] == 10**9


async def test_an_aggregate_comes_back_with_its_origins(client, raw, unique, directory):
    origin, name = unique("O"), unique("A")
    await filled(client, origin)
    transforms = [{"src": f"$KV.{origin}.>", "dest": f"$KV.{name}.>"}]
    sources = [{"name": f"KV_{origin}", "subject_transforms": transforms}]
    raw.create_bucket(name, subjects=[], sources=sources, duplicate_window=0)
    bucket = client.bucket(name)
    await _until(lambda: _values(bucket), 50)
    before = await contents(bucket)
    await bucket_backup.backup(client.api, name, directory)
    await bucket.destroy()
    done = await bucket_backup.restore(client.api, directory)
    assert "subjects" not in done.info["config"]
    assert await contents(client.bucket(name)) == before
    await client.bucket(origin).put("later", b"1")
    await _until(lambda: _values(client.bucket(name)), 51)


@pytest.mark.parametrize("context", ["hub", "hub-via-leaf"])
async def test_backups_cross_domains(leaf, context, bucket_name, directory):
    async with kvctl.connect(leaf.contexts[context]) as client:
        before = await lost(client, bucket_name, directory, keys=200, size=5000)
        await bucket_backup.restore(client.api, directory)
        assert await contents(client.bucket(bucket_name)) == before


async def test_a_cluster_s_bucket_can_come_back_with_fewer_replicas(cluster, server, bucket_name, directory):
    async with kvctl.connect(cluster.contexts["cluster"]) as client:
        before = await lost(client, bucket_name, directory, replicas=3)
        await bucket_backup.restore(client.api, directory)
        assert await contents(client.bucket(bucket_name)) == before
    async with kvctl.connect(server.url) as client:
        with pytest.raises(ServerError, match="replicas") as refused:
            await bucket_backup.restore(client.api, directory)
        assert refused.value.hint == "Use one stream replica, or connect to a cluster"
        await bucket_backup.restore(client.api, directory, replicas=1)
        assert await contents(client.bucket(bucket_name)) == before


# -- backing up --------------------------------------------------------------------------------------------


async def test_a_backup_is_private_and_described(client, bucket_name, directory):
    await filled(client, bucket_name)
    made = await bucket_backup.backup(client.api, bucket_name, directory)
    assert sorted(path.name for path in directory.iterdir()) == ["backup.json", "manifest.json", "stream.tar.s2"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()} == {0o600}
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    document = json.loads((directory / "manifest.json").read_bytes())
    assert (document["kvctl"], document["version"], document["bucket"]) == ("backup", 1, bucket_name)
    assert bucket_backup.read_manifest(directory) == made


async def test_a_backup_never_overwrites(client, bucket_name, directory):
    await client.create_bucket(bucket_name)
    directory.mkdir()
    (directory / "mine").write_text("x")
    with pytest.raises(ConflictError, match="not an empty directory"):
        await bucket_backup.backup(client.api, bucket_name, directory)
    (directory / "mine").unlink()
    await bucket_backup.backup(client.api, bucket_name, directory)


async def test_a_backup_that_fails_leaves_nothing(own_server, directory):
    async with kvctl.connect(own_server.url) as client:
        await filled(client, "B", keys=200, size=100_000)
        client.connection.timeout = 1

        def kill(_: int) -> None:
            own_server.kill()

        with pytest.raises(kvctl.errors.UnreachableError):
            await bucket_backup.backup(client.api, "B", directory, kill)
        assert list(directory.parent.iterdir()) == []
        with pytest.raises(kvctl.errors.UnreachableError):
            await bucket_backup.backup(client.api, "B", directory)


async def test_a_backup_that_is_interrupted_leaves_nothing(client, bucket_name, directory):
    await filled(client, bucket_name, keys=100, size=50_000)
    task = asyncio.create_task(
        bucket_backup.backup(client.api, bucket_name, directory, lambda _: task.cancel() and None)
    )
    with pytest.raises(asyncio.CancelledError):
        await task
    assert list(directory.parent.iterdir()) == []
    await bucket_backup.backup(client.api, bucket_name, directory)


async def test_a_directory_that_cannot_be_written_is_an_error(client, bucket_name, tmp_path):
    await client.create_bucket(bucket_name)
    (tmp_path / "file").write_text("")
    with pytest.raises(kvctl.errors.KvctlError, match="cannot be written"):
        await bucket_backup.backup(client.api, bucket_name, tmp_path / "file" / "backup")


async def test_mirrors_and_strange_streams_are_not_backed_up(client, raw, unique, directory):
    origin, mirror, other = unique("O"), unique("M"), unique("X")
    raw.create_bucket(origin)
    raw.create_stream(mirror, mirror={"name": f"KV_{origin}"}, storage="memory")
    raw.create_stream(f"KV_{other}", subjects=[f"{other}.>"], storage="memory")
    for name, message in ((mirror, f"mirror of `{origin}`"), (other, "is not a bucket")):
        with pytest.raises(RefusedError, match=message):
            await bucket_backup.backup(client.api, name, directory)
    with pytest.raises(BucketNotFound):
        await bucket_backup.backup(client.api, f"{other}-none", directory)
    assert not directory.exists()


async def test_hint_for_the_backup_of_a_mirror_names_the_domain_of_its_origin(client, raw, unique, directory):
    mirror = unique("M")
    raw.create_stream(mirror, mirror={"name": "KV_ORDERS", "external": {"api": "$JS.hub.API"}}, storage="memory")
    with pytest.raises(RefusedError) as caught:
        await bucket_backup.backup(client.api, mirror, directory)
    assert caught.value.hint == "Back up its origin with `kvctl bucket backup ORDERS DIR --domain hub`"


# -- restoring ---------------------------------------------------------------------------------------------


async def test_hint_for_the_backup_of_a_repository_names_a_command_that_works(client, unique, directory):
    repository, table = unique("R"), unique("T")
    await kvctl.Repositories(client).create(repository)
    await kvctl.Tables(client).create(table)
    for name, hint in ((repository, f"`nats stream backup KVR_{repository} DIR`"), (table, "no backup of tables")):
        with pytest.raises(RefusedError) as caught:
            await bucket_backup.backup(client.api, name, directory)
        assert hint in caught.value.hint


async def test_a_restore_never_overwrites(client, bucket_name, directory):
    bucket = await filled(client, bucket_name)
    await bucket_backup.backup(client.api, bucket_name, directory)
    await bucket.put("k.0", b"newer")
    with pytest.raises(BucketExists):
        await bucket_backup.restore(client.api, directory)
    assert (await bucket.get("k.0")).value == b"newer"


async def test_a_read_only_connection_backs_up_and_does_not_restore(server, client, bucket_name, directory):
    bucket = await filled(client, bucket_name)
    async with kvctl.connect(server.url, read_only=True) as reader:
        await bucket_backup.backup(reader.api, bucket_name, directory)
        await bucket.destroy()
        with pytest.raises(ReadOnly):
            await bucket_backup.restore(reader.api, directory)
    assert bucket_name not in await client.bucket_names()


@pytest.mark.guarantee("buckets-5")
@pytest.mark.parametrize("damage", ["cut", "grown", "flipped", "config", "manifest", "missing", "swapped"])
async def test_damage_is_found_before_anything_is_restored(client, bucket_name, directory, damage):
    await lost(client, bucket_name, directory)
    data, config, described = (directory / name for name in (DATA, CONFIG, MANIFEST))
    blob = data.read_bytes()
    changes: dict[str, Callable[[], Any]] = {
        "cut": lambda: data.write_bytes(blob[:-1]),
        "grown": lambda: data.write_bytes(blob + b"x"),
        "flipped": lambda: data.write_bytes(blob[:100] + bytes([blob[100] ^ 1]) + blob[101:]),
        "config": lambda: config.write_bytes(
            config.read_bytes().replace(b'"deny_delete": true', b'"deny_delete":false')
        ),
        "manifest": lambda: described.write_bytes(described.read_bytes().replace(b'"messages": 50', b'"messages": 49')),
        "missing": data.unlink,
        "swapped": lambda: described.write_bytes(b"{"),
    }
    changes[damage]()
    with pytest.raises(ConflictError, match="is damaged"):
        await bucket_backup.restore(client.api, directory)
    assert bucket_name not in await client.bucket_names()


@pytest.mark.parametrize("how", ["pipe", "link", "device"])
@pytest.mark.parametrize("name", [DATA, CONFIG, MANIFEST])
async def test_file_that_is_not_regular_is_refused_and_never_opened(client, bucket_name, directory, name, how):
    await lost(client, bucket_name, directory)
    aside = (directory / name).rename(directory.parent / "aside")
    {
        "pipe": lambda: os.mkfifo(directory / name),
        "link": lambda: (directory / name).symlink_to(aside),
        "device": lambda: (directory / name).symlink_to("/dev/zero"),
    }[how]()
    with pytest.raises((UsageError, ConflictError), match=rf"`{name}`: It is not a regular file"):
        await asyncio.wait_for(bucket_backup.restore(client.api, directory), 10)
    assert bucket_name not in await client.bucket_names()


async def test_every_flipped_bit_of_a_small_backup_is_found(client, bucket_name, directory):
    await filled(client, bucket_name, keys=1)
    await bucket_backup.backup(client.api, bucket_name, directory)
    for path in directory.iterdir():
        whole = path.read_bytes()
        for at in range(0, len(whole), 7):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
            with pytest.raises((ConflictError, UsageError)):
                bucket_backup.read_manifest(directory)
        path.write_bytes(whole)
    bucket_backup.read_manifest(directory)


async def test_a_newer_form_is_refused_by_name(client, bucket_name, directory):
    await filled(client, bucket_name, keys=1)
    await bucket_backup.backup(client.api, bucket_name, directory)
    described = directory / MANIFEST
    described.write_bytes(described.read_bytes().replace(b'"version": 1', b'"version": 2'))
    with pytest.raises(ConflictError, match="has version 2; this kvctl supports version 1"):
        bucket_backup.read_manifest(directory)


@pytest.mark.parametrize("content", [None, "", "[]", '{"kvctl": "dump", "version": 1}'])
def test_directory_without_a_backup_is_refused(directory, content):
    directory.mkdir()
    if content is not None:
        (directory / MANIFEST).write_text(content)
    with pytest.raises((UsageError, ConflictError)):
        bucket_backup.read_manifest(directory)


@pytest.mark.guarantee("buckets-11")
async def test_incomplete_restore_is_removed(client, bucket_name, directory):
    """A manifest that is sound in itself, of another bucket's data: only counting finds that out."""
    await lost(client, bucket_name, directory)
    described = directory / MANIFEST
    saved = json.loads((directory / CONFIG).read_bytes())
    saved["state"]["messages"] = 51
    (directory / CONFIG).write_text(json.dumps(saved))
    sign(directory)
    document = json.loads(described.read_bytes()) | {"messages": 51}
    del document["checksum"]
    described.write_text(json.dumps(document | {"checksum": checksum.of_document(document)}))
    with pytest.raises(ConflictError, match="messages 50 instead of 51"):
        await bucket_backup.restore(client.api, directory)
    assert bucket_name not in await client.bucket_names()


async def test_nobody_writes_into_a_restore(client, bucket_name, directory):
    """A write acknowledged meanwhile would be lost when the restore fails, and would spoil the counting."""
    await lost(client, bucket_name, directory, keys=100, size=50_000)
    refused: list[int] = []

    def write(_: int) -> None:
        client.connection.publish(f"$KV.{bucket_name}.intruder", b"1")
        refused.append(1)

    await bucket_backup.restore(client.api, directory, advance=write)
    assert refused
    assert "intruder" not in [key async for key in client.bucket(bucket_name).keys()]


async def test_an_interrupted_restore_is_removed(client, bucket_name, directory):
    before = await lost(client, bucket_name, directory, keys=100, size=50_000)
    done = 0

    def cancel_half_way(size: int) -> None:
        nonlocal done
        done += size
        if done > 2_500_000:
            task.cancel()

    task = asyncio.create_task(bucket_backup.restore(client.api, directory, advance=cancel_half_way))
    with pytest.raises(asyncio.CancelledError):
        await task
    assert bucket_name not in [status.bucket for status in (await catalog.listing(client.api)).statuses]
    await bucket_backup.restore(client.api, directory)
    assert await contents(client.bucket(bucket_name)) == before


async def test_leftovers_of_a_killed_restore_are_recognised_and_replaced(server, client, bucket_name, directory):
    before = await lost(client, bucket_name, directory, keys=100, size=50_000)
    async with kvctl.connect(server.url) as killed:
        await _half_restored(killed, directory)
    kinds = {status.bucket: status.kind for status in (await catalog.listing(client.api)).statuses}
    assert kinds[bucket_name] is Kind.INCOMPLETE
    assert bucket_name not in await client.bucket_names()
    with pytest.raises(BucketExists, match="interrupted restore"):
        await client.create_bucket(bucket_name)
    done = await bucket_backup.restore(client.api, directory)
    assert done.replaced
    assert await contents(client.bucket(bucket_name)) == before


async def test_a_server_that_cannot_read_the_snapshot_says_who_made_it(client, bucket_name, directory):
    await lost(client, bucket_name, directory)
    data, described = directory / DATA, directory / MANIFEST
    data.write_bytes(b"of another format")
    document = json.loads(described.read_bytes()) | {"server": "9.9.9"}
    document["files"] = [asdict(bucket_backup.hashed(directory / name)) for name in (CONFIG, DATA)]
    del document["checksum"]
    described.write_text(json.dumps(document | {"checksum": checksum.of_document(document)}))
    with pytest.raises(ServerError, match="restore failed") as refused:
        await bucket_backup.restore(client.api, directory)
    assert "made by nats-server 9.9.9" in str(refused.value.hint)
    assert bucket_name not in await client.bucket_names()


async def test_a_restore_cut_off_from_its_server_is_known(own_server, directory):
    async with kvctl.connect(own_server.url) as client:
        before = await lost(client, "B", directory, keys=100, size=50_000)
        client.connection.timeout = 1
        done = 0

        def restart_half_way(size: int) -> None:
            nonlocal done
            done += size
            if 2_500_000 < done < 2_500_000 + 2 * CHUNK:
                own_server.kill()
                own_server.start()

        with pytest.raises(kvctl.errors.UnreachableError):
            await bucket_backup.restore(client.api, directory, advance=restart_half_way)
        client.connection.timeout = 60
        assert await client.bucket_names() == []
        await bucket_backup.restore(client.api, directory)
        assert await contents(client.bucket("B")) == before


async def test_two_restores_at_once_make_one_bucket(server, client, bucket_name, directory):
    before = await lost(client, bucket_name, directory, keys=100, size=50_000)
    async with kvctl.connect(server.url) as other:
        outcomes = await asyncio.gather(
            bucket_backup.restore(client.api, directory),
            bucket_backup.restore(other.api, directory),
            return_exceptions=True,
        )
    assert sum(isinstance(outcome, bucket_backup.RestoreSummary) for outcome in outcomes) == 1
    assert await contents(client.bucket(bucket_name)) == before


async def _half_restored(client: kvctl.Client, directory: Path) -> None:
    """Begin a restore and feed it the first half, as kill -9 would leave it."""
    saved = json.loads((directory / CONFIG).read_bytes())
    held = bucket_backup.held(saved["config"], saved["state"], copy_bucket.new_token())
    restoring = RestoreSession(client.api, held, saved["state"])
    await restoring.begin()
    data = (directory / DATA).read_bytes()
    for start in range(0, len(data) // 2, CHUNK):
        await restoring.send(data[start : start + CHUNK])


async def _values(bucket: kvctl.Bucket) -> int:
    return (await bucket.status()).values


async def _until(count: Callable[[], Any], wanted: int) -> None:
    async with asyncio.timeout(60):
        while await count() < wanted:
            await asyncio.sleep(0.05)


FORGED: dict[str, tuple[type[Exception], dict[str, Any]]] = {
    "another-bucket": (ConflictError, {"name": "KV_STOLEN", "subjects": ["$KV.STOLEN.>"]}),
    "a-stream": (ConflictError, {"name": "PLAIN", "subjects": ["orders.>", "secrets.>"]}),
    "subjects-of-others": (ConflictError, {"subjects": ["orders.>"]}),
    "more-subjects": (ConflictError, {"subjects": ["$KV.BUCKET.>", "orders.>"]}),
    "no-subjects": (ConflictError, {"subjects": []}),
    "a-mirror": (ConflictError, {"mirror": {"name": "KV_OTHER"}, "subjects": None}),
    "a-mirror-with-subjects": (ConflictError, {"mirror": {"name": "KV_OTHER"}}),
    "no-name": (ConflictError, {"name": None}),
    "republish-of-everything": (HazardRefused, {"republish": {"src": ">", "dest": "leak.>"}}),
    "republish-into-a-bucket": (HazardRefused, {"republish": {"src": "$KV.BUCKET.>", "dest": "$KV.OTHER.>"}}),
    "republish-without-target": (ConflictError, {"republish": {"src": ">"}}),
    "republish-of-no-kind": (ConflictError, {"republish": "leak.>"}),
    "transform": (HazardRefused, {"subject_transform": {"src": "$KV.BUCKET.>", "dest": "orders.>"}}),
    "a-table": (ConflictError, {"metadata": {"kvctl.kind": "table"}}),
    "unfinished": (ConflictError, {"metadata": {"kvctl.unfinished": "token"}}),
    "metadata-of-no-kind": (ConflictError, {"metadata": "token"}),
    "sources-of-no-kind": (ConflictError, {"sources": "KV_OTHER"}),
}


def forge(directory: Path, bucket: str, change: dict[str, Any]) -> None:
    """Change the configuration in a backup."""
    saved = json.loads((directory / CONFIG).read_bytes())
    saved["config"] |= json.loads(json.dumps(change).replace("BUCKET", bucket))
    (directory / CONFIG).write_text(json.dumps(saved))
    sign(directory)


def sign(directory: Path) -> None:
    """Make the checksums right, which have no key."""
    manifest = json.loads((directory / MANIFEST).read_bytes())
    files = [asdict(bucket_backup.hashed(directory / name)) for name in (CONFIG, DATA)]
    manifest = {name: text for name, text in (manifest | {"files": files}).items() if name != "checksum"}
    (directory / MANIFEST).write_text(json.dumps({**manifest, "checksum": checksum.of_document(manifest)}))


@pytest.mark.parametrize("case", FORGED)
async def test_a_backup_of_something_else_than_its_manifest_says_is_refused(client, bucket_name, directory, case):
    error, change = FORGED[case]
    await lost(client, bucket_name, directory)
    forge(directory, bucket_name, change)
    before = await streams.names(client.api)
    with pytest.raises(error):
        await bucket_backup.restore(client.api, directory)
    assert await streams.names(client.api) == before


async def test_a_republish_of_others_is_restored_by_force(client, bucket_name, directory):
    await lost(client, bucket_name, directory)
    forge(directory, bucket_name, {"republish": {"src": ">", "dest": "leak.>"}})
    done = await bucket_backup.restore(client.api, directory, force=[bucket_backup.OTHER_SUBJECTS])
    assert done.info["config"]["republish"]["dest"] == "leak.>"


@pytest.mark.parametrize("count", ["messages", "bytes", "first_seq", "last_seq"])
async def test_a_backup_whose_state_differs_from_its_manifest_is_refused(client, bucket_name, directory, count):
    await lost(client, bucket_name, directory)
    saved = json.loads((directory / CONFIG).read_bytes())
    saved["state"][count] += 1
    (directory / CONFIG).write_text(json.dumps(saved))
    sign(directory)
    with pytest.raises(ConflictError, match="has another state"):
        await bucket_backup.restore(client.api, directory)


@pytest.mark.parametrize("content", ["{}", "[]", '{"config": [], "state": {}}', "[" * 100_000, '{"config": {}}'])
async def test_a_configuration_that_cannot_be_read_is_damage(client, bucket_name, directory, content):
    await lost(client, bucket_name, directory)
    (directory / CONFIG).write_text(content)
    sign(directory)
    with pytest.raises(ConflictError):
        await bucket_backup.restore(client.api, directory)


def test_the_configuration_of_a_restore_lets_nobody_in():
    stream = BucketConfig("B", ttl=MINUTE, max_bytes=10, marker_ttl=MINUTE, max_value_size=1).to_stream()
    held = bucket_backup.held(stream | {"sources": [{"name": "KV_O"}], "sealed": True}, {"bytes": 100}, "token")
    assert held["subjects"] == ["_kvctl.restore.token"]
    assert held["metadata"] == {"kvctl.unfinished": "token"}
    assert (held["max_age"], held["max_msg_size"], held["max_bytes"]) == (0, -1, 200)
    assert not held.keys() & {"sources", "sealed", "subject_delete_marker_ttl"}
    assert held["allow_msg_ttl"]
