"""Backup and restore of a bucket by the server's snapshot, verified by a manifest before and by counting after.

A server makes a stream visible while it is being restored, and leaves it incomplete when the restore is interrupted. So
it is restored with a mark in its metadata, without its subjects (nobody can write what a failure would delete again)
and without settings that add or remove messages. It gets its real configuration once it is found complete.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from kvctl.atomic_file import open_regular
from kvctl.documents import checksum
from kvctl.documents.checksum import Checksum
from kvctl.documents.record import check_types
from kvctl.errors import (
    BucketExists,
    ConflictError,
    HazardRefused,
    KvctlError,
    OutcomeUnknown,
    RefusedError,
    ServerError,
    UsageError,
)
from kvctl.jetstream import answer, streams
from kvctl.jetstream.api import HINTS, Api
from kvctl.jetstream.server_snapshot import (
    CHUNK,
    RESTORE_FAILED,
    RESTORE_NAME_IN_USE,
    RestoreSession,
    Snapshot,
    pieces,
    taking,
)
from kvctl.jetstream.stream_info import Source, StreamConfig, StreamInfo, StreamState
from kvctl.kv import catalog
from kvctl.kv.maintenance import copy_bucket
from kvctl.kv.names import STREAM_PREFIX, SUBJECT_PREFIX
from kvctl.kv.stream_kind import SERVER_METADATA, WHOLE, Kind, kind_of
from kvctl.tokens import shown
from kvctl.units import format_time
from kvctl.wire import MALFORMED

MANIFEST = "manifest.json"
CONFIG = "backup.json"
DATA = "stream.tar.s2"
"""The last two have the names and format of the `nats` CLI, which can restore them, too."""

VERSION = 1
OTHER_SUBJECTS = "other-subjects"
"""Safety check of a restore, which `--force` overrides."""
_LARGEST = 16 << 20


@dataclass(frozen=True, slots=True)
class File:
    """One file of a backup."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupManifest:
    """Description of a backup; times as RFC 3339."""

    bucket: str
    stream: str
    created: str
    server: str
    messages: int
    bytes: int
    keys: int
    first_revision: int
    last_revision: int
    files: tuple[File, ...]

    def document(self) -> dict[str, Any]:
        """Return the JSON form; its checksum covers every other field."""
        document = {"kvctl": "backup", "version": VERSION, **asdict(self)}
        return {**document, "checksum": checksum.of_document(document)}


def hashed(path: Path) -> File:
    """Return the file with its size and hash."""
    found = Checksum()
    with open_regular(path) as file:
        for _ in found.read(file):
            pass
    return File(path.name, found.size, found.sha256)


def read_manifest(directory: Path) -> BackupManifest:
    """Read the manifest of a backup and compare it with its files.

    Raises UsageError if the directory has no backup, ConflictError if it is damaged or made by a newer kvctl.
    """
    document = _document(directory / MANIFEST)
    version = document.get("version")
    if document.get("kvctl") != "backup" or not isinstance(version, int):
        raise UsageError(f"`{directory / MANIFEST}` is not the manifest of a backup")
    if version > VERSION:
        raise ConflictError(
            f"The backup in `{directory}` has version {version}; this kvctl supports version {VERSION}",
            hint="Use a newer kvctl",
        )
    manifest = _parse(document, directory)
    for file in manifest.files:
        _compare(directory, file)
    return manifest


@dataclass(frozen=True, slots=True)
class SavedStream:
    """Configuration and state of the stream in a backup, which fit its manifest."""

    config: StreamConfig
    state: StreamState
    elsewhere: tuple[str, ...]
    """What the bucket would take from other streams, or publish to other subjects."""
    hazardous: bool
    """True if that is more than a bucket of kvctl does by itself."""


def read_stream(directory: Path, manifest: BackupManifest) -> SavedStream:
    """Read the stream of a backup, which must be the bucket that its manifest describes. Raises ConflictError.

    Checksums have no key: whoever made the folder chose everything in it.
    """
    document = _document(directory / CONFIG)
    config, state = document.get("config"), document.get("state")
    counts = "messages bytes first_seq last_seq".split()
    if not isinstance(config, dict) or not isinstance(state, dict) or {type(state.get(it)) for it in counts} != {int}:
        raise _damaged(directory, f"`{CONFIG}` has no configuration or state")
    try:
        answer.check_snapshot(document)
    except MALFORMED as error:
        raise _damaged(directory, f"`{CONFIG}`: {error}") from None
    stream, prefix = f"{STREAM_PREFIX}{manifest.bucket}", f"{SUBJECT_PREFIX}{manifest.bucket}."
    for found in (manifest.stream, config.get("name")):
        if found != stream:
            raise _damaged(directory, f"it has stream `{shown(str(found))}` and bucket `{shown(manifest.bucket)}`")
    promised = (manifest.messages, manifest.bytes, manifest.first_revision, manifest.last_revision)
    if tuple(state[count] for count in counts) != promised:
        raise _damaged(directory, f"`{CONFIG}` has another state than `{MANIFEST}`")
    sources, subjects = config.get("sources") or (), config.get("subjects") or []
    if (subjects != [f"{prefix}>"] and (subjects or not sources)) or config.get("mirror"):
        raise _damaged(directory, f"its stream is not bucket `{shown(manifest.bucket)}` with the keys in `{prefix}>`")
    try:
        texts = [f"replicates from stream `{shown(source['name'])}`" for source in sources]
        for verb, name in (("republishes", "republish"), ("stores", "subject_transform")):
            if change := config.get(name):
                texts.append(f"{verb} `{shown(change['src'])}` as `{shown(change['dest'])}`")
        republish = config.get("republish") or {"src": prefix, "dest": ""}
        own = republish["src"].startswith(prefix) and not republish["dest"].startswith(("$", ">", "*"))
        kind = kind_of(cast("StreamConfig", config))
    except (TypeError, KeyError, AttributeError):
        raise _damaged(directory, f"`{CONFIG}` has no valid configuration") from None
    if kind not in (Kind.BUCKET, Kind.AGGREGATE):
        raise _damaged(directory, f"its stream is not bucket `{shown(manifest.bucket)}` with the settings of one")
    hazardous = not own or bool(config.get("subject_transform"))
    return SavedStream(cast("StreamConfig", config), cast("StreamState", state), tuple(texts), hazardous)


def refuse_elsewhere(manifest: BackupManifest, saved: SavedStream, force: Sequence[str]) -> None:
    """Raise HazardRefused, unless forced, for a bucket that would publish or store under subjects of others."""
    if saved.hazardous and OTHER_SUBJECTS not in force:
        text = f"The backup of `{manifest.bucket}` {' and '.join(saved.elsewhere)}; nothing was restored"
        raise HazardRefused(OTHER_SUBJECTS, text)


def _document(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file of a backup. Raises UsageError, ConflictError."""
    try:
        with open_regular(path) as file:
            content = file.read(_LARGEST + 1)
        if len(content) > _LARGEST:
            raise _damaged(path.parent, f"`{path.name}` is larger than {_LARGEST >> 20} MiB")
        document = json.loads(content)
    except OSError as error:
        hint = "Create one with `kvctl bucket backup BUCKET DIR`"
        raise UsageError(f"`{path.parent}` is not a backup: `{path.name}`: {error.strerror}", hint=hint) from None
    except (ValueError, RecursionError):
        raise _damaged(path.parent, f"`{path.name}` is not JSON") from None
    if not isinstance(document, dict):
        raise _damaged(path.parent, f"`{path.name}` is not a JSON object")
    return document


def _parse(document: dict[str, Any], directory: Path) -> BackupManifest:
    fields = {name: value for name, value in document.items() if name not in ("kvctl", "version", "checksum")}
    if document.get("checksum") != checksum.of_document(
        {name: value for name, value in document.items() if name != "checksum"}
    ):
        raise _damaged(directory, f"`{MANIFEST}` has been changed")
    try:
        files = tuple(File(**file) for file in fields.pop("files"))
        manifest = BackupManifest(files=files, **fields)
        for values, declared in ((asdict(manifest), BackupManifest), *((asdict(file), File) for file in files)):
            check_types(values, declared)
    except MALFORMED as error:
        raise _damaged(directory, f"`{MANIFEST}`: {error}") from None
    if {file.name for file in files} != {CONFIG, DATA}:
        raise _damaged(directory, f"`{MANIFEST}` names files that a backup does not have")
    return manifest


def _compare(directory: Path, expected: File) -> None:
    try:
        found = hashed(directory / expected.name)
    except OSError as error:
        raise _damaged(directory, f"`{expected.name}`: {error.strerror}") from None
    if found.bytes != expected.bytes:
        raise _damaged(directory, f"`{expected.name}` has {found.bytes} bytes instead of {expected.bytes}")
    if found.sha256 != expected.sha256:
        raise _damaged(directory, f"`{expected.name}` has been changed")


def _damaged(directory: Path, how: str) -> ConflictError:
    return ConflictError(
        f"The backup in `{directory}` is damaged: {how}", hint="Nothing was restored; use another backup"
    )


Advance = Callable[[int], None]
"""Called with the number of bytes done."""

SETTLING = 8.0
"""Seconds after which a server has abandoned a restore that receives nothing (it waits for five)."""
QUIET = 5
"""Consecutive empty reads after which nothing is expected any more."""


@dataclass(frozen=True, slots=True)
class RestoreSummary:
    """Result of a restore."""

    manifest: BackupManifest
    info: StreamInfo
    replaced: bool
    """True if the leftovers of an interrupted restore were removed first."""


async def backup(api: Api, name: str, directory: Path, advance: Advance = lambda _: None) -> BackupManifest:
    """Write a backup of the bucket or aggregate into the directory, which appears when it is complete.

    Raises BucketNotFound, ConflictError if the directory is not empty, RefusedError for a mirror, ServerError.
    """
    _require_empty(directory)
    try:
        info = await catalog.find(api, name)
    except RefusedError as error:
        error.hint = "kvctl has no backup of tables: see `kvctl help tables`"
        if await streams.find(api, WHOLE + name):
            error.hint = f"`nats stream backup {WHOLE}{name} DIR` backs up its stream"
        raise
    _require_own_data(name, info["config"])
    partial = directory.parent / f".{directory.name}.{secrets.token_hex(4)}"
    try:
        partial.mkdir(mode=0o700, parents=True)
        async with taking(api, info["config"]["name"]) as snapshot:
            made = await _write(api, name, snapshot, partial, advance)
        os.replace(partial, directory)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise KvctlError(f"The backup cannot be written to `{directory}`: {error.strerror}") from None
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return made


async def restore(
    api: Api,
    directory: Path,
    *,
    replicas: int | None = None,
    advance: Advance = lambda _: None,
    force: Sequence[str] = (),
) -> RestoreSummary:
    """Restore a backup under its own name, which must not exist; a failed or interrupted restore is removed.

    The leftovers of a killed restore are recognised and replaced. Raises UsageError if the directory has no backup,
    ConflictError for a damaged one or a bucket that is incomplete afterwards, HazardRefused for one that takes or
    publishes other subjects unless `force` has OTHER_SUBJECTS, BucketExists, ServerError, OutcomeUnknown.
    """
    expected = await asyncio.to_thread(read_manifest, directory)
    saved = read_stream(directory, expected)
    refuse_elsewhere(expected, saved, force)
    wanted = _final(saved.config, replicas)
    stream, token = wanted["name"], copy_bucket.new_token()
    await catalog.refuse_namesake(api, stream.removeprefix(STREAM_PREFIX))
    replaced = await _make_room(api, stream)
    config = held(wanted, saved.state, token)
    restoring = RestoreSession(api, config, saved.state)
    try:
        info = await _send(api, restoring, stream, directory / DATA, advance)
        _require_whole(expected, info["state"], wanted)
        info = await catalog.apply_edit(api, catalog.Edit(StreamInfo(**{**info, "config": config}), wanted))
    except OutcomeUnknown:
        raise  # it may already be in use
    except BaseException as error:
        await _remove(api, restoring, stream, token)
        if isinstance(error, ServerError) and error.err_code == RESTORE_FAILED:
            error.hint = _restore_hint(error, expected, _version(api))
        raise
    return RestoreSummary(expected, info, replaced)


def _restore_hint(error: ServerError, backup: BackupManifest, version: str) -> str | None:
    """Return the next step after a restore that the server failed, by the reason that its text ends with, if any."""
    codes = re.findall(r"\((\d{5})\)", error.message)
    if hint := next((HINTS[int(code)] for code in codes if int(code) in HINTS), None):
        return hint
    differs = backup.server != version
    return f"The backup was made by nats-server {backup.server}; this server is {version}" if differs else None


# -- backup ------------------------------------------------------------------------------------------------


def _require_empty(directory: Path) -> None:
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ConflictError(
            f"`{directory}` is not an empty directory", hint="Use a new directory; backups are never overwritten"
        )


def _require_own_data(name: str, config: StreamConfig) -> None:
    kind = kind_of(config)
    if config.get("mirror"):
        source = Source.parse(config["mirror"])
        origin, domain = source.name.removeprefix(STREAM_PREFIX), source.domain
        option = f" --domain {domain}" if domain else ""
        raise RefusedError(
            f"`{name}` is a mirror of `{origin}`",
            hint=f"Back up its origin with `kvctl bucket backup {origin} DIR{option}`",
        )
    if kind not in (Kind.BUCKET, Kind.AGGREGATE):
        raise RefusedError(f"`{name}` is not a bucket", hint=f"See what it is with `kvctl bucket show {name}`")


async def _write(api: Api, name: str, snapshot: Snapshot, directory: Path, advance: Advance) -> BackupManifest:
    saved = {"config": snapshot.config, "state": snapshot.state}
    _store(directory / CONFIG, json.dumps(saved, indent=2).encode())
    data = await _write_data(snapshot, directory / DATA, advance)
    state = snapshot.state
    made = BackupManifest(
        bucket=name,
        stream=snapshot.config["name"],
        created=format_time(time.time_ns()),
        server=_version(api),
        messages=state["messages"],
        bytes=state["bytes"],
        keys=state.get("num_subjects", 0),
        first_revision=state["first_seq"],
        last_revision=state["last_seq"],
        files=(hashed(directory / CONFIG), data),
    )
    _store(directory / MANIFEST, json.dumps(made.document(), indent=2).encode())
    return made


async def _write_data(snapshot: Snapshot, path: Path, advance: Advance) -> File:
    written = Checksum()
    with _create(path) as file:
        async for chunk in snapshot.chunks:
            file.write(chunk)
            written.add(chunk)
            advance(len(chunk))
        file.flush()
        os.fsync(file.fileno())
    return File(path.name, written.size, written.sha256)


def _store(path: Path, data: bytes) -> None:
    with _create(path) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _version(api: Api) -> str:
    return str(api.connection.server_info.get("version", ""))


def _create(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


# -- restore -----------------------------------------------------------------------------------------------


def _final(config: StreamConfig, replicas: int | None) -> StreamConfig:
    wanted = {**config, "num_replicas": replicas} if replicas else dict(config)
    metadata = {
        name: text for name, text in (config.get("metadata") or {}).items() if not name.startswith(SERVER_METADATA)
    }
    return {**wanted, "metadata": metadata}


def held(wanted: StreamConfig, state: StreamState, token: str) -> StreamConfig:
    """Return the configuration to restore with: marked, without subjects, and without limits."""
    moving = ("sources", "republish", "subject_transform", "subject_delete_marker_ttl", "sealed")
    config = {name: value for name, value in wanted.items() if name not in moving}
    config |= {"subjects": [f"_kvctl.restore.{token}"], "max_age": 0, "max_msg_size": -1}
    if config.get("max_bytes", -1) > 0:
        config["max_bytes"] = max(config["max_bytes"], 2 * state["bytes"])
    return copy_bucket.marked(config, token)


async def _make_room(api: Api, stream: str) -> bool:
    """Remove leftovers of an interrupted attempt. Raises BucketExists, ConflictError when one is in progress."""
    info = await streams.find(api, stream)
    if info is None:
        return False
    if copy_bucket.mark_of(info) is None:
        name = stream.removeprefix(STREAM_PREFIX)
        raise BucketExists(
            f"Bucket `{name}` already exists",
            hint=f"A restore never overwrites. Delete it first with `kvctl bucket delete {name}`",
        )
    await copy_bucket.clear_away(api, info)
    return True


async def _send(api: Api, restoring: RestoreSession, stream: str, path: Path, advance: Advance) -> StreamInfo:
    await _begin(api, restoring, stream)
    size = min(CHUNK, api.connection.max_payload)
    for piece in pieces(_blocks(path), size):
        await restoring.send(piece)
        advance(len(piece))
    return await restoring.finish()


async def _begin(api: Api, restoring: RestoreSession, stream: str) -> None:
    """Announce the stream; a restore that was killed a moment ago may still hold its name."""
    deadline = time.monotonic() + SETTLING
    while True:
        try:
            return await restoring.begin()
        except ServerError as error:
            if error.err_code != RESTORE_NAME_IN_USE or time.monotonic() > deadline:
                raise
        await asyncio.sleep(0.5)
        await _make_room(api, stream)


def _blocks(path: Path) -> Iterator[bytes]:
    with open_regular(path) as file:
        while block := file.read(CHUNK):
            yield block


def _require_whole(expected: BackupManifest, state: StreamState, wanted: StreamConfig) -> None:
    """Raise ConflictError unless the stream matches the manifest; keys past their own ttl may be missing."""
    found = {"messages": state["messages"], "last_revision": state["last_seq"]}
    if expected.messages:
        found |= {"first_revision": state["first_seq"], "keys": state.get("num_subjects", expected.keys)}
    problems = []
    for name, value in found.items():
        promised = getattr(expected, name)
        expires = wanted.get("allow_msg_ttl") and name != "last_revision"
        if value != promised and not (expires and (value < promised) != (name == "first_revision")):
            problems.append(f"{name.replace('_', ' ')} {value} instead of {promised}")
    if problems:
        raise ConflictError(
            f"The restored bucket differs from the backup: {', '.join(problems)}", hint="It was removed again"
        )


async def _remove(api: Api, restoring: RestoreSession, stream: str, token: str) -> None:
    """Stop the restore and delete the stream it created, recognised by its token."""
    patience = QUIET
    try:
        restoring.abort()
    except KvctlError:
        patience = int(SETTLING / 0.1)  # the server has to notice by itself
    deadline = time.monotonic() + SETTLING
    quiet = 0
    while time.monotonic() < deadline and quiet < patience:
        quiet = 0 if await copy_bucket.remove(api, stream, token) else quiet + 1
        await asyncio.sleep(0.1)
