"""Findings; checks of buckets, tables, repositories, and of keys that servers do not list; cheap and read-only."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

from kvctl.errors import KvctlError
from kvctl.jetstream.api import Api
from kvctl.jetstream.consumers import admin
from kvctl.jetstream.consumers.message import delivery
from kvctl.jetstream.consumers.ordered_consumer import read
from kvctl.jetstream.consumers.server_consumer import Selection
from kvctl.jetstream.stream_info import StreamConfig, StreamInfo, sources_of
from kvctl.kv.names import STREAM_PREFIX, SUBJECT_PREFIX
from kvctl.kv.oddity import oddities
from kvctl.kv.stream_kind import Kind, begins_somewhere, bucket_name, kind_of
from kvctl.phrases import quoted
from kvctl.tables import catalog as tables
from kvctl.tables.config import PARTITION_PREFIX, is_table, stream_name
from kvctl.topology.survey.inventory import lost_majority, servers, silence
from kvctl.units import format_size
from kvctl.versions import catalog, repositories
from kvctl.versions.branch import branch_state, epochs
from kvctl.versions.catalog import VERSION, RepositoryConfig, is_repository, layout
from kvctl.versions.model import Commit
from kvctl.versions.refs import COMMITS
from kvctl.versions.repository import Repository
from kvctl.versions.store.protocol import Store
from kvctl.versions.tree.chunks import BadRecord
from kvctl.versions.tree.objects import OBJECTS


class Severity(StrEnum):
    """Severity of a finding."""

    ERROR = "error"
    """Data is lost, hidden, duplicated or inaccessible, or will be."""
    WARNING = "warning"
    """Everything works, but something is likely to fail."""
    NOTE = "note"
    """Worth knowing."""


ERROR, WARNING, NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem of a subject, with its evidence and remedy."""

    severity: Severity
    check: str
    """Name of the kind of finding; for a hazard, its name."""
    subject: str
    """The bucket, mirror, aggregate or stream as users type it, or `connection` or `account`."""
    evidence: str
    remedy: str = ""
    """A command, or a sentence; empty if there is none."""


def ordered(found: Iterable[Finding]) -> list[Finding]:
    """Return the findings without duplicates, errors first, then by check and subject."""
    order = list(Severity)
    return sorted(
        dict.fromkeys(found), key=lambda item: (order.index(item.severity), item.check, item.subject, item.evidence)
    )


NEARLY_FULL, FULL = 0.8, 1.0
"""Parts of a bucket's limit at which to warn, and to report an error."""
MAX_LAG_OPERATIONS = 1000
"""Operations by which a server may be behind its leader."""


def of_buckets(infos: Mapping[str, StreamInfo], servers: int, cluster: str = "") -> Iterator[Finding]:
    """Check all streams in view that belong to buckets; `servers` is the number that the connected cluster reports."""
    counts = {name: len(found) for name, found in _servers_by_cluster(infos).items()}
    counts[cluster] = max(servers, counts.get(cluster, 0))
    known = {name: info["config"] for name, info in infos.items()}
    for info in infos.values():
        config = info["config"]
        kind = kind_of(config, known)
        if kind is None:
            continue
        name = bucket_name(config, kind)
        yield from _servers(name, info)
        if kind is Kind.INCOMPLETE:
            text = "A restore or copy was interrupted, or is still running"
            yield Finding(
                WARNING, "unfinished", name, text, f"Run it again, or delete it with `kvctl bucket delete {name}`"
            )
        elif kind is Kind.STREAM:
            rows = list(oddities(config, kind))
            why = "; ".join(row.evidence(config) for row in rows) or "it mirrors a stream that is not one"
            text = f"The stream `{name}` is named like a bucket, but is not one: {why}"
            yield Finding(NOTE, "no-bucket", name, text, ". ".join(row.fix(config) for row in rows))
        elif kind in (Kind.BUCKET, Kind.AGGREGATE, Kind.MIRROR):
            yield from _limits(name, info)
            for row in oddities(config, kind):
                yield Finding(Severity(row.severity), row.name, name, row.evidence(config), row.fix(config))
            yield from _starts(name, info)
            yield from _alone(name, info, kind, counts.get((info.get("cluster") or {}).get("name") or "", 0))


def _servers_by_cluster(infos: Mapping[str, StreamInfo]) -> dict[str, set[str]]:
    """Return the servers that hold any stream, by cluster."""
    found: dict[str, set[str]] = {}
    for cluster in (info.get("cluster") or {} for info in infos.values()):
        names = {peer["name"] for peer in cluster.get("replicas") or ()} | {cluster.get("leader") or ""}
        found.setdefault(cluster.get("name") or "", set()).update(names - {""})
    return found


def of_offline(stream: str, info: StreamInfo | None, cluster: str | None, origin: str | None = None) -> Finding:
    """Return the finding on a stream whose servers do not answer.

    `info` is what the cluster still reports of it; without it, `origin` is the stream that it mirrors, if known.
    """
    name = stream.removeprefix("KV_")
    where = f" in cluster `{cluster}`" if cluster else ""
    names = servers(info) if info else []
    start = f"Start {quoted(names)}" if names else f"Start its servers{where}"
    if info is None:
        what = f", a mirror of `{origin.removeprefix('KV_')}`{where}," if origin else where
        also = "" if origin else "; it may be a mirror or an aggregate"
        return Finding(ERROR, "offline", name, f"`{name}`{what} is offline: {silence(())}{also}", start)
    origins = dict.fromkeys(source["name"].removeprefix("KV_") for source in sources_of(info["config"]))
    also = f", and nothing arrives from {quoted(origins)}" if origins else ""
    return Finding(ERROR, "offline", name, f"`{name}`{where} is offline: {silence(names)}{also}", start)


def _servers(name: str, info: StreamInfo) -> Iterator[Finding]:
    cluster = info.get("cluster") or {}
    if not cluster:
        return
    peers, led = cluster.get("replicas") or [], bool(cluster.get("leader"))
    if not led or lost_majority(info):
        text = f"{lost_majority(info)}: without a leader, " if lost_majority(info) else "It has no leader: "
        yield Finding(ERROR, "no-leader", name, f"{text}writes and listings fail", "Start the servers that hold it")
        return
    away = [peer["name"] for peer in peers if peer.get("offline") or not peer.get("current", True)]
    if away:
        count = len(peers) + 1
        text = f"{quoted(away)} of {count} servers {'is' if len(away) == 1 else 'are'} offline or far behind"
        more = ": if one more fails, writes stop" if len(away) * 2 >= len(peers) else ""
        yield Finding(WARNING, "server-away", name, text + more, f"Start {quoted(away)}, or replace it")
    for peer in peers:
        if peer["name"] not in away and peer.get("lag", 0) > MAX_LAG_OPERATIONS:
            text = f"`{peer['name']}` is {peer['lag']} operations behind the leader"
            yield Finding(WARNING, "server-behind", name, text, "Check its disk and its load")


def _limits(name: str, info: StreamInfo) -> Iterator[Finding]:
    config, state = info["config"], info["state"]
    for what, used, limit in (
        ("bytes", state["bytes"], config.get("max_bytes", -1)),
        ("entries", state["messages"], config.get("max_msgs", -1)),
    ):
        if limit <= 0 or used < NEARLY_FULL * limit:
            continue
        shown = [format_size(value) if what == "bytes" else str(value) for value in (used, limit)]
        text = f"{shown[0]} of {shown[1]} {'' if what == 'bytes' else 'entries '}are used"
        raised = f"kvctl stream edit {config['name']} --set max_msgs=NUMBER"
        raised = f"kvctl bucket edit {name} --max-bytes SIZE" if what == "bytes" else raised
        remedy = f"`{raised}`, or `kvctl bucket compact {name}`"
        if config.get("discard") != "new":
            text += ": the oldest entries are silently deleted"
            yield Finding(WARNING, "nearly-full", name, text, remedy)
        else:
            severity = ERROR if used >= FULL * limit else WARNING
            yield Finding(severity, "nearly-full", name, f"{text}: when full, new keys are refused", remedy)


def _starts(name: str, info: StreamInfo) -> Iterator[Finding]:
    """Yield sources without a start position; one that has already replicated something continues from there."""
    sources = [source for source in info["config"].get("sources") or () if not begins_somewhere(source)]
    started = {source.get("name") for source in info.get("sources") or () if source.get("seq")}
    audit = f"find missing keys with `kvctl topology audit {name}`"
    remedy = f"Set it by any edit, such as `kvctl bucket edit {name} --description TEXT`; {audit}"
    for origin in dict.fromkeys(source["name"] for source in sources):
        text = f"The source `{origin.removeprefix('KV_')}` has no `opt_start_seq`"
        if origin in started:
            yield Finding(NOTE, "no-first-entry", name, f"{text}: keys may have been lost before it connected", remedy)
        else:
            text += ": once an entry of the aggregate is overwritten, earlier entries of the origin do not arrive"
            yield Finding(WARNING, "no-first-entry", name, text, remedy)


def _alone(name: str, info: StreamInfo, kind: Kind, count: int) -> Iterator[Finding]:
    """Yield a bucket with a single stream replica in a cluster."""
    config = info["config"]
    if kind is not Kind.BUCKET or config.get("num_replicas", 1) > 1 or count < 3:
        return
    kept = "in memory" if config.get("storage") == "memory" else "on its disk"
    text = f"Only one of {count} servers holds `{name}`, {kept}: without that server, reads and writes fail"
    yield Finding(WARNING, "one-replica", name, text, f"`kvctl bucket edit {name} --replicas 3`")


MAX_COMMITS = 1000
"""Maximum number of commits checked, from branches and tags on."""
MAX_RECORDS = 100_000
"""Maximum number of records whose subjects are listed to find orphans: one page of the server's."""


async def of_repositories(api: Api, infos: Mapping[str, StreamInfo]) -> list[Finding]:
    """Check all repositories in view. One that cannot be read is a finding too."""
    found: list[Finding] = []
    for info in infos.values():
        if is_repository(info["config"]):
            found += [*settings(info), *await _records(api, catalog.found(info))]
    return found


def settings(info: StreamInfo) -> Iterator[Finding]:
    """Yield settings that no repository has, and their effects."""
    config: StreamConfig = info["config"]
    name = RepositoryConfig.from_stream(config).name
    wanted = RepositoryConfig(name).stream(config.get("first_seq", 1))
    yield from _changed("repository-changed", name, config, wanted, _OF_REPOSITORIES)


async def _records(api: Api, found: catalog.ExistingRepository) -> list[Finding]:
    name = found.config.name
    if layout(found.info["config"]) > VERSION:
        text = "The repository was created by a newer kvctl"
        return [Finding(NOTE, "newer-kvctl", name, text, "Use that version of kvctl")]
    if not found.info["state"]["messages"]:
        text = "The repository is incomplete: its creation was interrupted, or is still running"
        fix = f"If it is not running, complete it with `kvctl repo init {name}`"
        return [Finding(WARNING, "unfinished", name, text, fix)]
    try:
        return [finding async for finding in inspect(found, repositories.handle(api, found))]
    except BadRecord as error:
        return [Finding(ERROR, "broken-record", name, error.message, _LOST)]
    except KvctlError as error:
        return [Finding(WARNING, "unseen", name, f"Could not read the repository: {error.message}", error.hint or "")]
    except (KeyError, TypeError, ValueError) as error:
        return [Finding(ERROR, "broken-record", name, f"Could not decode a record: {error!r}", _LOST)]


async def inspect(found: catalog.ExistingRepository, repository: Repository) -> AsyncIterator[Finding]:
    """Yield the problems in a repository's records. Raises what reading raises."""
    store, name = repository.store, found.config.name
    leads = {f"Branch `{branch}`": commit for branch, commit in (await repository.branches()).items()}
    leads |= {f"Tag `{tag}`": commit for tag, commit in (await repository.tags()).items()}
    async for text in _broken_references(store, leads):
        yield Finding(ERROR, "broken-reference", name, text, _LOST)
    remedy = f"Remove the remains with `kvctl repo gc {name}`"
    if found.info["state"].get("num_subjects", 0) <= MAX_RECORDS and (left := await epochs.uncollected(store)):
        what = "epoch of staged changes is" if len(left) == 1 else "epochs of staged changes are"
        yield Finding(NOTE, "orphaned-epochs", name, f"{len(left)} {what} not used by any branch", remedy)
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


_OF_REPOSITORIES = {
    "max_msgs_per_subject": "records need exactly one revision",
    "max_age": "old records are lost, committed or not",
    "max_msgs": "old records are lost, committed or not",
    "allow_atomic": "commits are refused",
    "allow_msg_ttl": "deletions are refused",
    "subjects": "records are inaccessible",
}
_LOST = "A mirror or a backup of its stream may have the record; other branches and tags remain readable"


def of_tables(infos: Mapping[str, StreamInfo], unreachable: tuple[str, ...] = ()) -> Iterator[Finding]:
    """Check all tables in view, and partition streams without a table."""
    parts = {name for name in infos if name.startswith(PARTITION_PREFIX)}
    for info in infos.values():
        if is_table(info["config"]):
            table = tables.found(info)
            parts -= {*table.streams}
            yield from _table(table, info, {*infos, *unreachable})
    names = {name.removeprefix(PARTITION_PREFIX).rpartition("_")[0] for name in parts}
    for name in sorted(names - {name for name in names if stream_name(name) in unreachable}):
        text = f"Partition streams exist without the table's own stream `{stream_name(name)}`"
        fix = f"Run `kvctl table create {name}` with the same options, then `kvctl table delete {name}`"
        yield Finding(WARNING, "table-leftovers", name, text, fix)


def _table(table: tables.ExistingTable, info: StreamInfo, there: set[str]) -> Iterator[Finding]:
    name, state = table.config.name, tables.state(info)
    if state:
        doing, command = ("created", "create") if state == tables.CREATING else ("deleted", "delete")
        text = f"The table is incomplete: it is being {doing}, or that was interrupted"
        fix = f"If that is not running, complete it with `kvctl table {command} {name}`"
        yield Finding(WARNING, "unfinished", name, text, fix)
        return
    missing = [stream for stream in table.streams if stream not in there]
    if missing:
        text = f"{len(missing)} of its streams do not exist, the first is `{missing[0]}`: their entries are lost"
        fix = f"Delete it with `kvctl table delete {name}`, recreate it, and load a copy"
        yield Finding(ERROR, "table-damaged", name, text, fix)
    wanted = table.config.head(info["config"].get("first_seq", 1))
    yield from _changed("table-changed", name, info["config"], wanted, _OF_TABLES)


def _changed(
    check: str, name: str, stream: StreamConfig, wanted: StreamConfig, effects: Mapping[str, str]
) -> Iterator[Finding]:
    """Yield settings that no stream of its kind has, and their effects."""
    for field, effect in effects.items():
        value = stream.get(field) or None
        if value != (wanted.get(field) or None):
            text = f"`{field}` is {value or 'off'}: {effect}"
            yield Finding(ERROR, check, name, text, f"`nats stream edit {stream['name']}`: set it back")


_OF_TABLES = {
    "max_msgs_per_subject": "entries need exactly one version",
    "allow_atomic": "batches are refused",
    "allow_direct": "reads go only to the leader",
    "subjects": "entries are inaccessible",
}


async def of_unlisted(api: Api, infos: Mapping[str, StreamInfo]) -> list[Finding]:
    """Check buckets and aggregates that have more messages than the index counts; only those are read."""
    found = []
    for stream, info in infos.items():
        state, name = info["state"], stream.removeprefix(STREAM_PREFIX)
        if name != stream and not info["config"].get("mirror") and state["messages"] > state.get("num_subjects", 0):
            with suppress(KvctlError):  # deleted in the meantime, or no permission to create a consumer
                if state["messages"] > await admin.count(api, stream, filter_subject=f"{SUBJECT_PREFIX}{name}.>"):
                    found += await _named(api, stream, name)
    return found


async def _named(api: Api, stream: str, name: str) -> list[Finding]:
    """Return the finding with the number of keys and the first of them, by reading the subjects of all messages."""
    keys: dict[bytes, int] = {}
    async for batch in read(api, stream, Selection(subjects=(">",), deliver="all", headers_only=True)):
        keys |= {frame[0]: delivery(frame[1])[0] for frame in batch if b"\x7f" in frame[0]}
    if not keys:
        return []
    subject, revision = min(keys.items(), key=lambda item: item[1])
    key = subject.decode(errors="surrogateescape").removeprefix(f"{SUBJECT_PREFIX}{name}.").replace("\x7f", r"\x7f")
    text = f"{len(keys)} of its keys have the byte 0x7f, the first is `{key}`: servers leave them out of listings"
    fix = f"Read it with `kvctl stream get {stream} {revision}`, and write it under another key"
    return [Finding(ERROR, "unlisted-keys", name, text, fix)]
