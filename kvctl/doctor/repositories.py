"""Checks of repositories: settings that break them, dangling references, unreferenced records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kvctl.doctor.finding import ERROR, NOTE, WARNING, Finding
from kvctl.errors import KvctlError
from kvctl.jetstream.api import Api
from kvctl.jetstream.stream_info import StreamConfig, StreamInfo
from kvctl.versions import catalog, repositories
from kvctl.versions.config import VERSION, RepositoryConfig, is_repository, layout
from kvctl.versions.maintenance import fsck
from kvctl.versions.maintenance.fsck import Kind
from kvctl.versions.tree.chunks import BadRecord


async def examine(api: Api, infos: Mapping[str, StreamInfo]) -> list[Finding]:
    """Check all repositories in view. One that cannot be read is a finding too."""
    found: list[Finding] = []
    for info in infos.values():
        if is_repository(info["config"]):
            found += [*settings(info), *await _content(api, catalog.found(info))]
    return found


def settings(info: StreamInfo) -> Iterator[Finding]:
    """Yield settings that no repository has, and their effects."""
    config: StreamConfig = info["config"]
    name, stream = RepositoryConfig.from_stream(config).name, config["name"]
    wanted = RepositoryConfig(name).stream(config.get("first_seq", 1))
    for field, meaning in _NEEDED.items():
        there = config.get(field) or None
        if there != (wanted.get(field) or None):
            text = f"`{field}` is {there if there is not None else 'off'}: {meaning}"
            yield Finding(ERROR, "repository-changed", name, text, f"`nats stream edit {stream}`: set it back")


async def _content(api: Api, found: catalog.Found) -> list[Finding]:
    name = found.config.name
    if layout(found.info["config"]) > VERSION:
        return [
            Finding(
                NOTE, "newer-kvctl", name, "The repository was created by a newer kvctl", "Use that version of kvctl"
            )
        ]
    if not found.info["state"]["messages"]:
        text = "The repository is incomplete: its creation was interrupted, or is still running"
        return [
            Finding(
                WARNING, "unfinished", name, text, f"If it is not running, complete it with `kvctl repo init {name}`"
            )
        ]
    try:
        flaws = await fsck.inspect(found, repositories.handle(api, found))
    except BadRecord as error:
        return [Finding(ERROR, "broken-record", name, error.message, _LOST)]
    except KvctlError as error:
        return [Finding(WARNING, "unseen", name, f"Could not read the repository: {error.message}", error.hint or "")]
    except (KeyError, TypeError, ValueError) as error:
        return [Finding(ERROR, "broken-record", name, f"Could not decode a record: {error!r}", _LOST)]
    return [
        Finding(_SEVERITY.get(flaw.kind, ERROR), _CHECK.get(flaw.kind, "broken-reference"), name, flaw.evidence,
                _REMEDY.get(flaw.kind, _LOST).format(name=name, branch=flaw.branch, commit=flaw.commit))
        for flaw in flaws
    ]  # fmt: skip


_NEEDED = {
    "max_msgs_per_subject": "records need exactly one revision",
    "max_age": "old records are lost, committed or not",
    "max_msgs": "old records are lost, committed or not",
    "allow_atomic": "commits are refused",
    "allow_msg_ttl": "deletions are refused",
    "subjects": "records are inaccessible",
}
_SEVERITY = {Kind.ORPHANED_EPOCHS: NOTE, Kind.INTERRUPTED_COLLECTION: NOTE, Kind.LOST_KEYS: WARNING}
_CHECK = {
    Kind.ORPHANED_EPOCHS: "orphaned-epochs",
    Kind.INTERRUPTED_COLLECTION: "interrupted-gc",
    Kind.LOST_KEYS: "lost-keys",
}
_REMEDY = {
    Kind.ORPHANED_EPOCHS: "Remove the remains with `kvctl repo gc {name}`",
    Kind.INTERRUPTED_COLLECTION: "Remove the remains with `kvctl repo gc {name}`",
    Kind.LOST_KEYS: "Stage them again with `kvctl dump {name}@{commit} | kvctl load {name}@{branch} - --create-only`, "
    "then commit",
}
_LOST = "A mirror or a backup of its stream may have the record; other branches and tags remain readable"
