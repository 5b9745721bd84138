"""Repositories: settings that break them, references that lead to nothing, what nobody knows any more."""

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
    """All repositories in view. One that cannot be read is a finding, too."""
    found: list[Finding] = []
    for info in infos.values():
        if is_repository(info["config"]):
            found += [*settings(info), *await _content(api, catalog.found(info))]
    return found


def settings(info: StreamInfo) -> Iterator[Finding]:
    """What is configured as no repository is, and what it does."""
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
        return [Finding(NOTE, "newer-kvctl", name, "It was made by a newer kvctl", "Use that one")]
    if not found.info["state"]["messages"]:
        text = "It is not complete: its creation was interrupted, or goes on"
        return [
            Finding(WARNING, "unfinished", name, text, f"If nobody is at it, `kvctl repo init {name}` completes it")
        ]
    try:
        flaws = await fsck.inspect(found, repositories.handle(api, found))
    except BadRecord as error:
        return [Finding(ERROR, "broken-record", name, error.message, _LOST)]
    except KvctlError as error:
        return [Finding(WARNING, "unseen", name, f"It cannot be read: {error.message}", error.hint or "")]
    except (KeyError, TypeError, ValueError) as error:
        return [Finding(ERROR, "broken-record", name, f"A record in it cannot be understood: {error!r}", _LOST)]
    return [
        Finding(_SEVERITY.get(flaw.kind, ERROR), _CHECK.get(flaw.kind, "broken-reference"), name, flaw.evidence,
                _REMEDY.get(flaw.kind, _LOST).format(name=name, branch=flaw.branch, commit=flaw.commit))
        for flaw in flaws
    ]  # fmt: skip


_NEEDED = {
    "max_msgs_per_subject": "every record has one version",
    "max_age": "what is old is lost, committed or not",
    "max_msgs": "what is old is lost, committed or not",
    "allow_atomic": "commits are refused",
    "allow_msg_ttl": "deletions are refused",
    "subjects": "records are out of reach",
}
_SEVERITY = {Kind.ORPHANED_EPOCHS: NOTE, Kind.INTERRUPTED_COLLECTION: NOTE, Kind.LOST_KEYS: WARNING}
_CHECK = {
    Kind.ORPHANED_EPOCHS: "orphaned-epochs",
    Kind.INTERRUPTED_COLLECTION: "interrupted-gc",
    Kind.LOST_KEYS: "lost-keys",
}
_REMEDY = {
    Kind.ORPHANED_EPOCHS: "`kvctl repo gc {name}` removes what is left",
    Kind.INTERRUPTED_COLLECTION: "`kvctl repo gc {name}` removes what is left",
    Kind.LOST_KEYS: "`kvctl dump {name}@{commit} | kvctl load {name}@{branch} - --create-only` stages them again; "
    "then commit",
}
_LOST = "A mirror or a backup of its stream may have it; what other branches and tags hold can be read"
