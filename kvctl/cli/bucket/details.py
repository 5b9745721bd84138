"""Details of one bucket, mirror or aggregate, and the streams that can answer its reads: `kvctl bucket alternates`."""

import asyncio
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from kvctl.cli.app.command import command
from kvctl.cli.app.options import BucketName
from kvctl.cli.app.session import Session
from kvctl.cli.bucket.views import KIND
from kvctl.cli.facts import of_stream, row_of
from kvctl.cli.live import Interval, Watch, check_interval, check_live, show_live
from kvctl.cli.records import ALTERNATE, BUCKET
from kvctl.errors import KvctlError
from kvctl.jetstream.stream_info import Cluster, Source, sources_of
from kvctl.kv import config as kv_config
from kvctl.kv import oddity, stream_kind
from kvctl.phrases import joined
from kvctl.render import cards
from kvctl.render.fields import LEADER, bar_text, columns, number_text, stored, title_in
from kvctl.render.view import Column, Row, View, document, duration_text, limit_text
from kvctl.topology.health import health as health_health
from kvctl.topology.health import inspection, overview
from kvctl.topology.model import notation
from kvctl.topology.survey import graph, inventory
from kvctl.units import duration_from_ns, duration_seconds, format_time, parse_time

NOT_REPORTED = "This server reports no alternates (only clusters do); any reachable mirror may answer reads"
NO_MIRRORS = "The cluster reports no mirror of the bucket"
ORIGIN_AWAY = "The origin, whose servers report the order, does not answer; any reachable mirror may answer reads"


@command(
    "bucket alternates",
    examples=["kvctl bucket alternates ORDERS", "kvctl bucket alternates ORDERS -o name | head -1"],
    see=["bucket show", "mirror create", "help topologies"],
    prints=(ALTERNATE,),
    listing=True,
)
async def alternates(session: Session, bucket: BucketName, watch: Watch = False, interval: Interval = None) -> None:
    """List the streams that can answer reads of a bucket, nearest first.

    Clients read a bucket by its name, and the nearest stream answers: the origin or one of its mirrors. The order is
    that of the server, seen from the one that kvctl is connected to; offline streams are last. HERE marks the streams
    that answered test reads, with the shortest round trip; an empty bucket has no entry to read.

    STATE and BEHIND are those of `kvctl topology status`: how far a mirror is behind its origin, and so how old a read
    may be. A bucket of another domain or account is answered by its mirrors here. Servers outside of clusters, and
    those of a bucket without mirrors, report no alternates; then the origin and the mirrors in view are listed.
    """
    every = check_interval(watch, interval)
    api = (await session.client()).api

    async def read() -> cards.TextReport:
        return alternates_report(bucket, await overview.readers_of(api, bucket))

    if watch:
        check_live(session)
        await show_live(session, f"alternates of {bucket}", read, every)
        return
    found = await overview.readers_of(api, bucket)
    if session.output == "table" and not session.options.chooses:
        session.report(alternates_report(bucket, found))
        return
    rows = alternate_rows(found)
    empty = "No stream answers reads here"
    session.show(View(columns=ALTERNATES, rows=rows, name="served_by", empty=empty))
    for hazard in found.unable:
        session.warn(f"{hazard.evidence}: {hazard.remedy}")
    if not found.reported and found.alternates:
        session.note(_not_reported(found), always=True)


async def hint_of_others(session: Session, bucket: str, verb: str, words: Sequence[str]) -> str | None:
    """Return the command that reads the same keys as one that got no answer, from the origin or a mirror; None: none.

    Nothing is raised: it is looked for while an error is on its way.
    """
    with suppress(KvctlError, TimeoutError):
        async with asyncio.timeout(_LOOKING_S):
            found = (await overview.inspect((await session.client()).api, bucket)).reads.alternates
            able = [item for item in found if item.here or item.state not in _UNABLE]
            for item in able:
                if item.served_by != bucket:
                    line = shlex.join(["kvctl", verb, item.served_by, *words])
                    return f"`{item.served_by}` has the same keys, and its servers answer: `{line}`"
    return None


def alternates_report(bucket: str, found: "overview.Reads") -> "cards.TextReport":
    """Return the ranked streams with bars of their round trips, and which of them answers here."""
    rows = alternate_rows(found)
    if not rows:
        return cards.TextReport([], [cards.Sentence("No stream answers reads here")])
    title = [("Reads of ", ""), (bucket, "bold"), (" are answered, nearest first, by", "")]
    here = [row["served_by"] for row in rows if row["here"]]
    closing = []
    if here:
        answers = "answers" if len(here) == 1 else "answer"
        closing.append(cards.Sentence(f"{joined(here)} {answers} here. `kvctl get --leader` asks the origin."))
    for hazard in found.unable:
        closing.append(cards.Sentence(f"{hazard.evidence}: {hazard.remedy}", "▲", "yellow"))
    if not found.reported:
        closing.append(cards.Sentence(_not_reported(found)))
    return cards.TextReport([cards.Card(title, [_ranked(rows)])], closing)


def _ranked(rows: Sequence[Row]) -> View:
    """Return a view of alternates with bars of their round trips."""
    most = max((row["round_trip"] or 0 for row in rows), default=0) or 1
    shown = [
        {
            **row,
            "state": row["state"] or "unknown",
            "order": "-" if row["state"] in _AWAY else row["order"],
            "part": (row["round_trip"] or 0) / most or None,
        }
        for row in rows
    ]
    return View(columns=_RANKED, rows=shown)


def alternate_rows(found: "overview.Reads") -> list[dict[str, Any]]:
    """Return the JSON objects of alternates, nearest first, those that do not answer last."""
    order = sorted(found.alternates, key=lambda item: item.state in _AWAY)
    return [
        {"order": order, **{name: getattr(item, name) for name in ALTERNATE.fields[1:-1]}, "name": item.stream}
        for order, item in enumerate(order, 1)
    ]


def _not_reported(found: "overview.Reads") -> str:
    """Say why the server did not report alternates."""
    origin = next((item for item in found.alternates if item.role == "origin"), None)
    if origin is not None and origin.state in _AWAY:
        return ORIGIN_AWAY
    return NO_MIRRORS if origin is not None and origin.cluster else NOT_REPORTED


_LOOKING_S = 3
"""Seconds for finding out who else has the keys of a bucket that does not answer."""
_UNABLE = (None, "offline", "no leader", "recreated origin")
"""States of streams that cannot answer, or would with other keys."""
_AWAY = ("offline", "no leader")
"""States of streams that cannot answer."""
ALTERNATES = columns(
    "order served_by role cluster domain leader state entries_behind last_seen round_trip here",
    order="#",
    entries_behind=Column("entries_behind", "Behind", text=number_text, right=True, keep=True),
    round_trip=Column("round_trip", text=lambda seconds: f"{seconds * 1000:.1f} ms", right=True),
    here=Column("here", text=lambda here: "here" if here else "", keep=True, style="green"),
)
_RANKED = (
    *(column for column in ALTERNATES[:-1] if column.key != "last_seen"),
    Column("part", "", text=bar_text, bar=True, yields=4),
    ALTERNATES[-1],
)


def show(session: Session, found: "overview.Overview") -> None:
    """Print all that is known of a bucket, with warnings."""
    session.show(bucket_view(found))
    if found.status is not None:
        remark(session, found.status)
    for text in remarks(found):
        session.warn(text)
    if not found.reads.reported and len(found.reads.alternates) > 1:
        session.note(_not_reported(found.reads))


def remark(session: Session, status: "kv_config.BucketStatus") -> None:
    """Warn about a stream that is not a complete bucket."""
    kind, stream = str(status.kind), status.stream
    if kind == "incomplete":
        session.warn(f"`{stream}` is incomplete: its restore or copy was interrupted, run that again to replace it")
    elif kind == "stream":
        rows = list(oddity.oddities(status.config))
        why = "; ".join(row.evidence(status.config) for row in rows)
        text = f"`{stream}` is named like a bucket but does not have the configuration of one"
        session.warn(f"{text}: {why}" if why else text)


def bucket_view(found: "overview.Overview") -> View:
    """Return a view of all details of one bucket."""
    row = bucket_row(found)
    origins = [notation.with_rules_text(origin, found.stream) for origin in row["origins"]]
    choices = row["alternates"] if len(row["alternates"]) > 1 else []
    sections = [
        ("Servers", servers_view(row["cluster"] or {})),
        ("Replicates from", View(columns=_ORIGINS, rows=origins)),
        ("Reads answered by, nearest first", _ranked(choices)),
        ("Replicated by", View(columns=_DEPENDENTS, rows=row["dependents"] or [])),
    ]
    groups = (_GENERAL, _CONTENTS, (*_KEPT, *_settings(row["config"] or {}), *_place(row, choices)))
    return document(
        row,
        *_DETAILS,
        tsv=BUCKET.columns,
        title=lambda row: title_in(row, row["kind"]),
        groups=groups,
        sections=sections,
    )


def _place(row: Row, choices: Sequence[Row]) -> Iterator[Column]:
    """Yield columns for where a bucket is stored, and by whom its reads are answered unless `choices` tell."""
    if row["replicas"] and row["config"]:
        yield stored(row["replicas"], row["config"].get("storage", "file"))
    yield LEADER
    if not choices:
        yield Column("answered_by", "answered here by", text=_answering)
    yield Column("stream")


def _answering(found: Sequence[Row]) -> str:
    return ", ".join(one["stream"].removeprefix("KV_") for one in found)


def servers_view(cluster: dict[str, Any]) -> View:
    """Return a view of the servers that hold a stream, leader first; `cluster` is the JSON object of `cluster_row`."""
    leader = {
        "name": cluster.get("leader"),
        "role": "leader",
        "current": True,
        "offline": False,
        "lag": None,
        "last_seen": None,
    }
    led = bool(cluster.get("leader"))
    followers = [{"role": "follower" if led else None, **peer} for peer in cluster.get("replicas", [])]
    return View(columns=_PEERS, rows=[*([leader] if followers and led else []), *followers])


def remarks(found: "overview.Overview") -> Iterator[str]:
    """Yield warnings about the bucket, as far as they can be determined."""
    status = found.status
    if status is None:
        names = inventory.servers(found.info) if found.info else []
        yield f"`{found.name}` is offline: {inventory.silence(names)}, and only what others know is shown"
    if found.dependents is None:
        yield "Cannot list the streams of this account: the replicas of the bucket are unknown"
    if status is not None:
        yield from (row.evidence(status.config) for row in oddity.oddities(status.config) if row.refuses or row.loses)
    yield from (hazard.evidence for hazard in found.hazards)
    if found.lineage and found.lineage.same is None:
        yield found.lineage.evidence
    yield from (item.evidence for item in found.lineages.values() if not item.same)
    yield from found.doubts
    if found.answered_by == [] and (status is None or status.config.get("allow_direct")):
        yield "Nothing answers direct reads of this bucket here"


def bucket_row(found: "overview.Overview") -> dict[str, Any]:
    """Return the JSON object of a bucket; fields that only its own servers know are null if they do not answer."""
    return {
        **(_stored(found.status) if found.status else _offline(found)),
        "origins": list(_origins(found)),
        "alternates": alternate_rows(found.reads),
        "answered_by": None if found.answered_by is None else [{"stream": stream} for stream in found.answered_by],
        "dependents": None
        if found.dependents is None
        else [
            {
                **dependent_row(item, found.health_of(item.node.stream)),
                "recreated": _recreated(found.lineages.get(item.node.stream)),
            }
            for item in found.dependents
        ],
        "config": found.info["config"] if found.info else None,
        "state": str(found.state) if found.state else None,
    }


def dependent_row(item: "graph.Dependent", health: "health_health.ReplicaHealth | None" = None) -> dict[str, Any]:
    """Return the JSON object of a stream that replicates a bucket; without `health` it was not examined."""
    upstream = None if item.offline else item.upstream
    state = "offline" if item.offline else health and health.state
    return {
        "name": item.node.name,
        "stream": item.node.stream,
        "kind": item.node.kind,
        "state": str(state) if state else None,
        "lag": health.lag if health else upstream and upstream.lag,
        "last_seen": upstream.last_seen if upstream else None,
        "error": upstream.error if upstream else None,
        "last_revision": item.last_revision,
    }


def cluster_row(cluster: Cluster, placed: str | None = None, *, offline: bool = False) -> dict[str, Any] | None:
    """Return the JSON object of the servers that hold a stream.

    Of an offline one, the cluster is the one it was placed in: another server answers, with its own cluster and zeros.
    Of a peer that went away without a leader, the zeros are no report either.
    """
    if not cluster and not placed:
        return None
    peers = [
        {
            "name": peer["name"],
            "current": bool(peer.get("current")),
            "offline": bool(peer.get("offline")),
            "last_seen": peer.get("active", 0) / 1e9 if known else None,
            "lag": peer.get("lag", 0) if known else None,
        }
        for peer in cluster.get("replicas") or []
        for known in [not offline and bool(peer.get("active") or not peer.get("offline"))]
    ]
    name = placed if offline else cluster.get("name")
    return {"name": name or None, "leader": cluster.get("leader") or None, "replicas": peers}


def _stored(status: "kv_config.BucketStatus", *, offline: bool = False) -> dict[str, Any]:
    facts = of_stream(status.info, offline=offline) | {"name": status.bucket, "kind": str(status.kind)}
    cluster = cluster_row(status.info.get("cluster") or {})
    return row_of(BUCKET, facts, backing_store=status.backing_store, cluster=cluster)


def _offline(found: "overview.Overview") -> dict[str, Any]:
    """Return the JSON object of a stream whose servers do not answer, as far as others know it."""
    cluster = cluster_row((found.info.get("cluster") if found.info else None) or {}, found.cluster, offline=True)
    if found.info is not None:
        return {**_stored(kv_config.BucketStatus.from_info(found.info), offline=True), "cluster": cluster}
    known = {"name": found.name, "stream": found.stream, "kind": "mirror" if found.clue else "unknown"}
    return row_of(BUCKET, known, backing_store="JetStream", cluster=cluster)


def _origins(found: "overview.Overview") -> Iterator[dict[str, Any]]:
    """Yield the JSON object of each origin; without a health, the state is null."""
    config = found.info["config"] if found.info else {"mirror": found.clue.source} if found.clue else {}
    standings = [item for item in found.health if item.link.reader == found.stream]
    states = graph.upstreams(found.info) if found.info else []
    for number, source in enumerate(sources_of(config)):
        upstream = states[number] if states and found.status else None
        standing = next((item for item in standings if item.link.source == source), None)
        origin = found.origins[number] if found.origins else standing.link.origin if standing else None
        parsed = Source.parse(source)
        yield {
            "name": parsed.name.removeprefix("KV_"),
            "stream": parsed.name,
            "domain": parsed.domain if states else None,
            "api": parsed.api or None,
            **notation.rules_json(source, found.stream),
            "state": str(standing.state) if standing and found.status else None if found.status else "offline",
            "last_seen": upstream.last_seen if upstream else None,
            "lag": standing.lag if standing else None,
            "error": upstream.error if upstream else None,
            "last_revision": origin["state"]["last_seq"] if origin else None,
            "created": format_time(parse_time(origin["created"])) if origin else None,
            "recreated": _recreated(found.lineage),
        }


def _recreated(lineage: "inspection.Lineage | None") -> bool | None:
    """Return True if a mirror serves an earlier stream instance of its origin, None if that is unknown."""
    return None if lineage is None or lineage.same is None else not lineage.same


def _settings(config: Row) -> list[Column]:
    """Return columns for the settings that differ from ADR-8's defaults."""
    shown: list[tuple[str, str]] = []
    if config.get("subject_delete_marker_ttl"):
        shown.append(("markers", duration_text(_seconds(config["subject_delete_marker_ttl"]))))
    elif config.get("allow_msg_ttl"):
        shown.append(("", "ttl per key, without markers"))
    shown += [(label, limit_text(config[field])) for field, label in _LIMITS if config.get(field, -1) > 0]
    placement, republish = config.get("placement") or {}, config.get("republish")
    if placement.get("tags"):
        shown.append(("tags", placement["tags"]))
    if republish:
        what = " (headers only)" if republish.get("headers_only") else ""
        shown.append(("republish", f"{republish.get('src')} -> {republish.get('dest')}{what}"))
    if config.get("allow_atomic"):
        shown.append(("", "atomic batches"))
    if not (config.get("allow_direct") or config.get("mirror_direct")):
        shown.append(("", "no direct get: every read goes to the leader"))
    if config.get("sealed"):
        shown.append(("", "sealed, permanently read-only"))
    metadata = stream_kind.own_metadata(dict(config))
    if metadata:
        shown.append(("metadata", ", ".join(f"{name}={value}" for name, value in metadata.items())))
    return [Column("config", label, text=_always(text)) for label, text in shown]


def _always(text: Any) -> Any:
    return lambda _: ", ".join(text) if isinstance(text, list) else text


def _seconds(nanoseconds: int) -> float:
    return duration_seconds(duration_from_ns(nanoseconds))


_LIMITS = (("max_msg_size", "max value"), ("max_bytes", "max bytes"))
_DETAILS = columns(
    "name kind state stream description values bytes last_revision history ttl compressed replicas created answered_by",
    kind=KIND,
    answered_by=Column("answered_by", text=_answering),
)
_GENERAL = columns("description", description="")
_CONTENTS = columns(
    "values bytes last_revision last_write created",
    bytes="stored",
    last_revision=Column("last_revision", "revision", text=number_text),
    last_write="written",
)
_KEPT = columns("history ttl compressed", compressed=Column("compressed", "", text=lambda yes: "compressed" * yes))
_PEERS = columns(
    "name role current offline lag last_seen", offline=Column("offline", style=lambda offline: "red" if offline else "")
)
_FOLLOWS = "state lag last_revision recreated last_seen error"
"""Fields on how a replica follows its origin."""
_RECREATED = Column("recreated", "Origin", text=lambda yes: "recreated" if yes else "", style="red")
_LAST_REVISION = Column("last_revision", "revision", text=number_text, right=True, yields=2)
_ORIGINS = columns(
    f"name domain api taken lands_as {_FOLLOWS}", state="Link", recreated=_RECREATED, last_revision=_LAST_REVISION
)
_DEPENDENTS = columns(f"name kind {_FOLLOWS}", recreated=_RECREATED, last_revision=_LAST_REVISION)
