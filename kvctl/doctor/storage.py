"""Checks of single buckets: their servers, limits and harmful settings. [pure]"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kvctl.doctor.finding import ERROR, NOTE, WARNING, Finding
from kvctl.jetstream.stream_info import StreamConfig, StreamInfo, sources_of
from kvctl.kv.stream_kind import Kind, begins_somewhere, bucket_name, kind_of, renaming, stop_renaming
from kvctl.phrases import quoted
from kvctl.topology.survey.offline import lost_majority, servers, silence
from kvctl.units import format_size

NEAR, FULL = 0.8, 1.0
"""Parts of a bucket's limit at which to warn, and to report an error."""
MAX_LAG_OPERATIONS = 1000
"""Operations by which a server may be behind its leader."""


def examine(infos: Mapping[str, StreamInfo], servers: int, cluster: str = "") -> Iterator[Finding]:
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
            text = f"The stream `{name}` is named like a bucket, but is not one"
            yield Finding(
                NOTE, "no-bucket", name, text, f"See the reason with `kvctl bucket show {name.removeprefix('KV_')}`"
            )
        elif kind in (Kind.BUCKET, Kind.AGGREGATE, Kind.MIRROR):
            yield from _limits(name, info)
            yield from _settings(name, config, kind)
            yield from _starts(name, info)
            yield from _alone(name, info, kind, counts.get((info.get("cluster") or {}).get("name") or "", 0))


def _servers_by_cluster(infos: Mapping[str, StreamInfo]) -> dict[str, set[str]]:
    """Return the servers that hold any stream, by cluster."""
    found: dict[str, set[str]] = {}
    for cluster in (info.get("cluster") or {} for info in infos.values()):
        names = {peer["name"] for peer in cluster.get("replicas") or ()} | {cluster.get("leader") or ""}
        found.setdefault(cluster.get("name") or "", set()).update(names - {""})
    return found


def offline(stream: str, info: StreamInfo | None, cluster: str | None, origin: str | None = None) -> Finding:
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
        if limit <= 0 or used < NEAR * limit:
            continue
        shown = [format_size(value) if what == "bytes" else str(value) for value in (used, limit)]
        text = f"{shown[0]} of {shown[1]} {'' if what == 'bytes' else 'entries '}are used"
        remedy = f"`kvctl bucket edit {name} --max-bytes SIZE`, or `kvctl bucket compact {name}`"
        if config.get("discard") != "new":
            text += ": the oldest entries are silently deleted"
            yield Finding(WARNING, "nearly-full", name, text, remedy)
        else:
            severity = ERROR if used >= FULL * limit else WARNING
            yield Finding(severity, "nearly-full", name, f"{text}: when full, new keys are refused", remedy)


def _settings(name: str, config: StreamConfig, kind: Kind) -> Iterator[Finding]:
    stream = config["name"]
    if kind is not Kind.MIRROR and not config.get("allow_direct"):
        text = "Direct gets are off: every read goes to the leader, and mirrors serve none"
        yield Finding(WARNING, "no-direct-get", name, text, f"`kvctl stream edit {stream} --set allow_direct=true`")
    limited = max(config.get("max_bytes", -1), config.get("max_msgs", -1)) > 0
    if kind is Kind.BUCKET and limited and config.get("discard", "old") == "old":
        text = "When full, the oldest keys are silently deleted: ADR-8 buckets refuse new keys instead"
        yield Finding(WARNING, "discards-old", name, text, f"`kvctl stream edit {stream} --set discard=new`")
    if kind is Kind.BUCKET and not config.get("allow_rollup_hdrs") and not config.get("sealed"):
        text = "Rollups are off: purges are refused"
        yield Finding(WARNING, "no-rollup", name, text, f"`kvctl stream edit {stream} --set allow_rollup_hdrs=true`")
    if renamed := renaming(config):
        yield Finding(ERROR, "renamed-keys", name, renamed, stop_renaming(config))
    if kind in (Kind.AGGREGATE, Kind.MIRROR) and config.get("deny_purge"):
        text = "Purges are denied: keys purged at an origin stay readable here"
        yield Finding(NOTE, "deny-purge", name, text, "`kvctl help topologies`")
    if kind is Kind.MIRROR and stream.startswith("KV_"):
        text = f"A mirror with a bucket's stream name (`{stream}`): other clients open it and find no keys"
        origin = config["mirror"]["name"].removeprefix("KV_")
        remedy = f"Create a mirror that serves the origin's name: `kvctl mirror create {name}_COPY --origin {origin}`"
        yield Finding(NOTE, "mirror-name", name, text, remedy)


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
