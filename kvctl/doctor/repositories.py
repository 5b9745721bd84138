"""Checks of repositories: settings that break them, broken references, unreferenced records; cheap and read-only."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping

from kvctl.doctor.finding import ERROR, NOTE, WARNING, Finding
from kvctl.errors import KvctlError
from kvctl.jetstream.api import Api
from kvctl.jetstream.stream_info import StreamConfig, StreamInfo
from kvctl.versions import catalog, repositories
from kvctl.versions.branch import branch_state, dropped_epochs
from kvctl.versions.branch.staging import STAGING
from kvctl.versions.config import VERSION, RepositoryConfig, is_repository, layout
from kvctl.versions.model import Commit
from kvctl.versions.refs import COMMITS
from kvctl.versions.repository import Repository
from kvctl.versions.store.protocol import Store
from kvctl.versions.tree.chunks import BadRecord
from kvctl.versions.tree.objects import OBJECTS

MAX_COMMITS = 1000
"""Maximum number of commits checked, from branches and tags on."""
MAX_RECORDS = 100_000
"""Maximum number of records whose subjects are listed to find orphans: one page of the server's."""


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
        return [finding async for finding in inspect(found, repositories.handle(api, found))]
    except BadRecord as error:
        return [Finding(ERROR, "broken-record", name, error.message, _LOST)]
    except KvctlError as error:
        return [Finding(WARNING, "unseen", name, f"Could not read the repository: {error.message}", error.hint or "")]
    except (KeyError, TypeError, ValueError) as error:
        return [Finding(ERROR, "broken-record", name, f"Could not decode a record: {error!r}", _LOST)]


async def inspect(found: catalog.Found, repository: Repository) -> AsyncIterator[Finding]:
    """Yield the problems in a repository's records. Raises what reading raises."""
    store, name = repository.store, found.config.name
    branches = await repository.branches()
    leads = {f"Branch `{branch}`": commit for branch, commit in branches.items()}
    leads |= {f"Tag `{tag}`": commit for tag, commit in (await repository.tags()).items()}
    async for text in _broken_references(store, leads):
        yield Finding(ERROR, "broken-reference", name, text, _LOST)
    for branch, record in zip(
        branches, await store.get_many([(STAGING, one.encode()) for one in branches]), strict=True
    ):
        if record is None:
            yield Finding(ERROR, "broken-reference", name, f"Branch `{branch}` has no staging record", _LOST)
    remedy = f"Remove the remains with `kvctl repo gc {name}`"
    if found.info["state"].get("num_subjects", 0) <= MAX_RECORDS and (epochs := await _orphaned(store)):
        what = "epoch of staged changes is" if len(epochs) == 1 else "epochs of staged changes are"
        yield Finding(NOTE, "orphaned-epochs", name, f"{len(epochs)} {what} not used by any branch", remedy)
    if (await branch_state.collections(store)).collection.deleting:
        yield Finding(NOTE, "interrupted-gc", name, "A garbage collection was interrupted or is running", remedy)


async def _broken_references(store: Store, leads: dict[str, str]) -> AsyncIterator[str]:
    """Yield what refers to missing commits and trees, nearest to branches and tags first."""
    looked: set[str] = set()
    while leads and len(looked) < MAX_COMMITS:
        looked.update(leads.values())
        there = await store.get_many([(COMMITS, bytes.fromhex(commit)) for commit in leads.values()])
        commits = [Commit.decode(value) for value in {item.value for item in there if item is not None}]
        for (who, commit), item in zip(leads.items(), there, strict=True):
            if item is None:
                yield f"{who} refers to commit `{commit}`, which is missing"
        roots = await store.get_many([(OBJECTS, bytes.fromhex(commit.root)) for commit in commits], lasting=True)
        for parsed, root in zip(commits, roots, strict=True):
            if root is None:
                yield f"Commit `{parsed.id}` needs object `{parsed.root}`, which is missing"
        leads = {f"Commit `{one.id}`": parent for one in commits for parent in one.parents if parent not in looked}


async def _orphaned(store: Store) -> list[str]:
    """Return the epochs with changes that garbage collection would clear."""
    return [
        epoch for epoch in await dropped_epochs.uncollected(store) if await dropped_epochs.has_changes(store, epoch)
    ]


_NEEDED = {
    "max_msgs_per_subject": "records need exactly one revision",
    "max_age": "old records are lost, committed or not",
    "max_msgs": "old records are lost, committed or not",
    "allow_atomic": "commits are refused",
    "allow_msg_ttl": "deletions are refused",
    "subjects": "records are inaccessible",
}
_LOST = "A mirror or a backup of its stream may have the record; other branches and tags remain readable"
