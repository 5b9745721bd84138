"""Buckets one by one: servers that hold them, limits, settings that do harm. [pure]"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kvctl.doctor.finding import ERROR, NOTE, WARNING, Finding
from kvctl.jetstream.stream_info import StreamConfig, StreamInfo
from kvctl.jetstream.stream_source import sources_of
from kvctl.kv.stream_kind import Kind, begins_somewhere, bucket_name, kind_of, renaming, stop_renaming
from kvctl.units import format_size

NEAR, FULL = 0.8, 1.0
"""Parts of a bucket's limit at which there is a warning, and an error."""
LAGGING = 1000
"""Operations by which a server may be behind its leader."""


def examine(infos: Mapping[str, StreamInfo], servers: int) -> Iterator[Finding]:
    """All streams in view that have to do with buckets; `servers` are as many as the cluster says that it has."""
    servers = max(servers, len(_named(infos)))
    known = {name: info["config"] for name, info in infos.items()}
    for info in infos.values():
        config = info["config"]
        kind = kind_of(config, known)
        if kind is None:
            continue
        name = bucket_name(config, kind)
        yield from _servers(name, info)
        if kind is Kind.INCOMPLETE:
            text = "An interrupted restore or copy left it, or one is under way"
            yield Finding(WARNING, "unfinished", name, text, f"Run it again, or `kvctl bucket delete {name}`")
        elif kind is Kind.STREAM:
            text = f"The stream `{name}` is named like a bucket, and is none"
            yield Finding(NOTE, "no-bucket", name, text, f"`kvctl bucket show {name.removeprefix('KV_')}` tells why")
        elif kind in (Kind.BUCKET, Kind.AGGREGATE, Kind.MIRROR):
            yield from _limits(name, info)
            yield from _settings(name, config, kind)
            yield from _starts(name, info)
            yield from _alone(name, info, kind, servers)


def _named(infos: Mapping[str, StreamInfo]) -> set[str]:
    """The servers that hold any stream."""
    clusters = [info.get("cluster") or {} for info in infos.values()]
    return {peer["name"] for cluster in clusters for peer in cluster.get("replicas") or ()}


def unreachable(stream: str, info: StreamInfo | None = None) -> Finding:
    """A stream that nobody answered for; `info` is what the cluster still knows of it."""
    name = stream.removeprefix("KV_")
    cluster = (info.get("cluster") if info else None) or {}
    peers = [peer["name"] for peer in cluster.get("replicas") or ()]
    if not peers:
        text = (
            f"No server that holds the stream `{stream}` answers: whether it is a mirror or an aggregate is not known"
        )
        return Finding(ERROR, "unreachable", name, text, "Start the servers that hold it")
    config = info["config"] if info else {}
    held = f"its only server {_listed(peers)} does" if len(peers) == 1 else f"its servers {_listed(peers)} do"
    sources = sources_of(config)
    origins = _listed(list(dict.fromkeys(source["name"].removeprefix("KV_") for source in sources)))
    also = f", and nothing arrives from {origins}" if origins else ""
    return Finding(
        ERROR, "unreachable", name, f"`{name}` is offline: {held} not answer{also}", f"Start {_listed(peers)}"
    )


def _servers(name: str, info: StreamInfo) -> Iterator[Finding]:
    cluster = info.get("cluster") or {}
    if not cluster:
        return
    peers = cluster.get("replicas") or []
    if not cluster.get("leader"):
        yield Finding(
            ERROR, "no-leader", name, "It has no leader: no writes, no listings", "Start the servers of its group"
        )
    away = [peer["name"] for peer in peers if peer.get("offline") or not peer.get("current", True)]
    if away:
        led = bool(cluster.get("leader"))
        last = led and len(away) * 2 >= len(peers)  # with one more of them gone it stops
        count = len(peers) + led
        among = f"of {count} servers" if count > 1 else "(its only server)"
        text = f"{_listed(away)} {among} {'is' if len(away) == 1 else 'are'} offline, or far behind"
        more = ": one more, and it takes no writes" if last else ""
        yield Finding(WARNING, "server-away", name, text + more, "Start it, or replace it: `nats stream cluster`")
    for peer in peers:
        if peer["name"] not in away and peer.get("lag", 0) > LAGGING:
            text = f"`{peer['name']}` is {peer['lag']} operations behind the leader"
            yield Finding(WARNING, "server-behind", name, text, "Look at its disk and its load")


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
            text += ": what is oldest goes, without a word"
            yield Finding(WARNING, "nearly-full", name, text, remedy)
        else:
            severity = ERROR if used >= FULL * limit else WARNING
            yield Finding(severity, "nearly-full", name, f"{text}: then no new key fits", remedy)


def _settings(name: str, config: StreamConfig, kind: Kind) -> Iterator[Finding]:
    stream = config["name"]
    if kind is not Kind.MIRROR and not config.get("allow_direct"):
        text = "Direct gets are off: every read goes to the leader, and mirrors cannot answer"
        yield Finding(WARNING, "no-direct-get", name, text, f"`kvctl stream edit {stream} --set allow_direct=true`")
    limited = max(config.get("max_bytes", -1), config.get("max_msgs", -1)) > 0
    if kind is Kind.BUCKET and limited and config.get("discard", "old") == "old":
        text = "When it is full the oldest keys go, without a word: ADR-8's buckets refuse new ones instead"
        yield Finding(WARNING, "discards-old", name, text, f"`kvctl stream edit {stream} --set discard=new`")
    if kind is Kind.BUCKET and not config.get("allow_rollup_hdrs") and not config.get("sealed"):
        text = "Rollups are off: purges are refused"
        yield Finding(WARNING, "no-rollup", name, text, f"`kvctl stream edit {stream} --set allow_rollup_hdrs=true`")
    if renamed := renaming(config):
        yield Finding(ERROR, "renamed-keys", name, renamed, stop_renaming(config))
    if kind in (Kind.AGGREGATE, Kind.MIRROR) and config.get("deny_purge"):
        text = "Purges are denied: what is purged at an origin stays readable here"
        yield Finding(NOTE, "deny-purge", name, text, "`kvctl help topologies`")
    if kind is Kind.MIRROR and stream.startswith("KV_"):
        text = f"A mirror under a bucket's name (`{stream}`): other clients open it, and find no key in it"
        origin = config["mirror"]["name"].removeprefix("KV_")
        remedy = f"`kvctl mirror create {name}_COPY --origin {origin}` makes one that answers under the origin's name"
        yield Finding(NOTE, "mirror-name", name, text, remedy)


def _starts(name: str, info: StreamInfo) -> Iterator[Finding]:
    """Sources that do not begin with their origin's first entry; one that has brought something goes on from there."""
    sources = [source for source in info["config"].get("sources") or () if not begins_somewhere(source)]
    brought = {told.get("name") for told in info.get("sources") or () if told.get("seq")}
    audit = f"`kvctl topology audit {name}` finds what is missing"
    remedy = f"Any edit sets it, as in `kvctl bucket edit {name} --description TEXT`; {audit}"
    for origin in dict.fromkeys(source["name"] for source in sources):
        text = f"The source `{origin.removeprefix('KV_')}` has no `opt_start_seq`"
        if origin in brought:
            yield Finding(NOTE, "no-first-entry", name, f"{text}: keys may have been lost before it connected", remedy)
        else:
            text += ": once an entry of the aggregate is overwritten, what the origin holds by then does not arrive"
            yield Finding(WARNING, "no-first-entry", name, text, remedy)


def _alone(name: str, info: StreamInfo, kind: Kind, servers: int) -> Iterator[Finding]:
    """One server holds it, where there are others."""
    config = info["config"]
    if kind is not Kind.BUCKET or config.get("num_replicas", 1) > 1 or servers < 3:
        return
    kept = "in memory" if config.get("storage") == "memory" else "on its disk"
    text = f"One server alone of {servers} holds it, {kept}: without that one there are no reads and no writes"
    yield Finding(WARNING, "one-replica", name, text, f"`kvctl bucket edit {name} --replicas 3`")


def _listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
