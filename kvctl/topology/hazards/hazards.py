"""Configurations and changes that silently lose, hide, duplicate or strand data, each with its evidence. [pure]

Hazards of replicas are derived from stream configurations: the replica's, and those of its origins, None where not
readable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

from kvctl.errors import HazardRefused
from kvctl.jetstream.stream_info import Source, SourceConfig, StreamConfig
from kvctl.kv import stream_kind
from kvctl.kv.names import STREAM_PREFIX, SUBJECT_PREFIX, meet
from kvctl.phrases import counted, indented, quoted
from kvctl.topology.hazards import limits
from kvctl.topology.model.subjects import Transform, UnknownTransform, parse
from kvctl.units import duration_from_ns, format_duration, format_size

LOSSY_EDIT = "lossy-edit"
LAGGING_REPLICA = "lagging-replica"
UNREACHABLE_STREAM = "unreachable-stream"
"""A stream does not answer, and may read from the one that is to be deleted or changed."""
FOREIGN_KIND = stream_kind.FOREIGN_KIND


class Hazard(NamedTuple):
    """One reason to stop; `--force NAME` overrides it."""

    name: str
    evidence: str
    remedy: str = ""
    """Suggested alternative, if there is one."""


def of_foreign(stream: StreamConfig) -> list[Hazard]:
    """Return the hazard of a bucket command on the stream of a table or a repository."""
    text = stream_kind.evidence(stream)
    return [Hazard(FOREIGN_KIND, text, stream_kind.remedy(stream))] if text else []


def of_silent(streams: Iterable[str]) -> list[Hazard]:
    """Return the hazard of a change while streams that may read from the changed one do not answer."""
    names = quoted(streams)
    if not names:
        return []
    text = f"Unreachable streams may be mirrors or aggregates of it: {names}"
    return [Hazard(UNREACHABLE_STREAM, text, "Start the servers that hold them")]


def options(names: list[str]) -> str:
    """Return how a command proceeds despite these hazards."""
    return f"Use `{' '.join(f'--force {name}' for name in names)}` to proceed anyway"


def argument(names: list[str]) -> str:
    """Return how a function of the library proceeds despite these hazards."""
    return f"Pass `force={names!r}` to proceed anyway"


def refuse(
    found: Iterable[Hazard], forced: Iterable[str] | None, what: str, way: Callable[[list[str]], str] = options
) -> None:
    """Raise HazardRefused with all hazards that are not forced; `what` begins the message, `way` ends the hint."""
    left = [hazard for hazard in found if hazard.name not in (forced or ())]
    if left:
        names = list(dict.fromkeys(hazard.name for hazard in left))
        remedies = [f"{remedy}. " for remedy in dict.fromkeys(hazard.remedy for hazard in left) if remedy]
        hint = f"{''.join(remedies)}{way(names)}"
        raise HazardRefused(left[0].name, indented(f"{what}:", (hazard.evidence for hazard in left)), hint=hint)


FILTERED_MIRROR = "filtered-mirror"
RENAMING_MIRROR = "renaming-mirror"
SHORTER_TTL = "shorter-ttl"
SHORTER_HISTORY = "shorter-history"
LONGER_HISTORY = "longer-history"
TTL_NOT_INHERITED = "ttl-not-inherited"
ORIGIN_NOT_DIRECT = "origin-not-direct"
MIRROR_NOT_DIRECT = "mirror-not-direct"
SMALLER_LIMITS = "smaller-limits"
OUTSIDE_PREFIX = "outside-prefix"
KEY_COLLISION = "key-collision"
DUPLICATE_WINDOW = "duplicate-window"
MISSING_ORIGIN = "missing-origin"
LAST_ORIGIN = "last-origin"
UNCONNECTED = "unconnected"
CYCLE = "cycle"
RECREATED_ORIGIN = "recreated-origin"
SHADOWED_ORIGIN = "shadowed-origin"

_OF_REPLICAS = (
    SHORTER_HISTORY,
    LONGER_HISTORY,
    SHORTER_TTL,
    TTL_NOT_INHERITED,
    SMALLER_LIMITS,
    MISSING_ORIGIN,
    UNCONNECTED,
    CYCLE,
    FOREIGN_KIND,
)
OF_MIRRORS = (FILTERED_MIRROR, ORIGIN_NOT_DIRECT, SHADOWED_ORIGIN, *_OF_REPLICAS)
OF_AGGREGATES = (KEY_COLLISION, *_OF_REPLICAS)
"""Hazards that can block the creation of a replica, and that can be overridden."""
OF_EDITS = (SHORTER_HISTORY, LONGER_HISTORY, SHORTER_TTL, TTL_NOT_INHERITED, SMALLER_LIMITS, UNREACHABLE_STREAM)
"""Hazards that an edit of a replica, or of its origin, can introduce."""
OF_STREAM_EDITS = (
    LOSSY_EDIT,
    *OF_EDITS,
    ORIGIN_NOT_DIRECT,
    DUPLICATE_WINDOW,
    OUTSIDE_PREFIX,
    KEY_COLLISION,
    CYCLE,
    FOREIGN_KIND,
)
"""Hazards that can block an edit of a stream, and that can be overridden."""

COLLISION = "the last one wins, and a deletion in one hides the other's"

_OF_BOTH = (
    "max_age max_bytes max_msgs max_msg_size max_msgs_per_subject discard storage allow_direct allow_msg_ttl "
    "duplicate_window sources"
).split()
"""Fields in which a replica and its origin have to agree, or that name its origins."""


def concerns_replicas(before: StreamConfig, after: StreamConfig) -> bool:
    """Return whether an edit can make a replica and its origin unsuitable for each other."""
    return any(before.get(field) != after.get(field) for field in _OF_BOTH)


def of_mirror(config: StreamConfig, origin: StreamConfig | None) -> list[Hazard]:
    """Return the hazards of a mirror; `origin` is the configuration of its origin, None if not readable."""
    if origin is None:
        return []
    external = bool(Source.parse(config["mirror"]).api)
    found = [*_ages(config, origin), *_history(config, origin), *_limits(config, [origin])]
    if config["mirror"].get("filter_subject") or config["mirror"].get("subject_transforms"):
        found += of_foreign(origin)  # an unfiltered mirror keeps every entry and revision: it harms no table
    return found if external else [*_answers(config, origin), *found]


def of_aggregate(config: StreamConfig, origins: Sequence[StreamConfig | None]) -> list[Hazard]:
    """Return the hazards of an aggregate; `origins` are in the order of its sources.

    A ttl longer than an origin's is not a hazard if another origin needs it (`outliving`).
    """
    seen = [origin for origin in origins if origin is not None]
    return [
        *_outside(config),
        *_collisions(config),
        *_window(config),
        *(hazard for origin in seen for hazard in _ages(config, origin, justified=_justified(config, origin, origins))),
        *(hazard for origin in seen for hazard in _history(config, origin, origins)),
        *_limits(config, origins),
        *(hazard for origin in seen for hazard in of_foreign(origin)),
    ]


def of_replica(config: StreamConfig, origins: Sequence[StreamConfig | None]) -> list[Hazard]:
    """Return the hazards of a mirror or an aggregate."""
    return of_mirror(config, origins[0]) if config.get("mirror") else of_aggregate(config, origins)


def shadowed(mirror: StreamConfig, bucket: StreamConfig | None, domain: str | None) -> list[Hazard]:
    """Return the hazard of a mirror that also answers reads of a bucket here, which has the name of its origin.

    `domain` is that of both; the origin is in another one, or in another account.
    """
    source = Source.parse(mirror.get("mirror") or {})
    if bucket is None or bucket.get("mirror") or not (mirror.get("mirror_direct") and source.is_external):
        return []
    if source.name != bucket["name"] or (domain and source.domain == domain):
        return []
    of = name_of(bucket)
    text = f"Mirror `{name_of(mirror)}` of `{of}` {source.where} also answers reads of `{of}` here"
    remedy = "Give the bucket another name, or replicate into an aggregate, which answers no reads of its origin"
    return [Hazard(SHADOWED_ORIGIN, f"{text}: each finds the keys of one or the other", remedy)]


def possible(config: StreamConfig, origins: Sequence[StreamConfig | None]) -> list[str]:
    """Return warnings about limits that some contents of the origins exceed, and others do not."""
    return [item.evidence for item in limits.shortfalls(config, origins) if not item.certain]


def introduced(
    before: StreamConfig | None,
    after: StreamConfig,
    origins: Sequence[StreamConfig | None],
    changed: Sequence[StreamConfig | None],
) -> list[Hazard]:
    """Return the hazards that a replica has only after a change of itself, or of its origins; None: it is new."""
    accepted = of_replica(before, origins) if before and origins else []
    return [hazard for hazard in of_replica(after, changed) if hazard not in accepted]


def outliving(config: StreamConfig, origins: Sequence[StreamConfig | None]) -> list[str]:
    """Return warnings about keys that an aggregate keeps after they expire, because other origins' keys live longer.

    No ttl suits all origins then: a shorter one would lose live keys. Origins that leave markers of expired keys are
    left out: the markers arrive and delete.
    """
    name, age = name_of(config), config.get("max_age", 0)
    return [
        f"Keys of `{name_of(origin)}` expire after {_age(theirs)} but stay in `{name}`. Delete them there too: "
        f"`kvctl bucket edit {name_of(origin)} --marker-ttl 1h`"
        for origin in origins
        if origin is not None
        and (theirs := origin.get("max_age", 0))
        and (not age or age > theirs)
        and not origin.get("subject_delete_marker_ttl")
        and _justified(config, origin, origins)
    ]


class Landing(NamedTuple):
    """Destination of one rule of one source."""

    number: int
    """Number of the source."""
    source: SourceConfig
    rule: Transform
    pattern: str
    """The subjects under which they are stored, as a filter."""


def overlaps(config: StreamConfig) -> list[tuple[Landing, Landing]]:
    """Return pairs of rules that could write one key."""
    places = [
        Landing(number, source, rule, _pattern(rule))
        for number, source in enumerate(config.get("sources") or ())
        for rule in _rules(source)
    ]
    return [(one, other) for one, other in combinations(places, 2) if meet(one.pattern, other.pattern)]


def whose(one: Landing, other: Landing) -> str:
    """Name the two origins as the subject of a sentence."""
    first, second = name_of(one.source), name_of(other.source)
    return f"Keys of `{first}`" if first == second else f"Keys of `{first}` and `{second}`"


def landing(source: SourceConfig) -> list[str]:
    """Return the subjects under which a source's messages are stored, as filters."""
    return [_pattern(rule) for rule in _rules(source)]


def of_reader(reader: StreamConfig, origin: StreamConfig, hazard: Hazard) -> Hazard:
    """Return a hazard of a replica as one of a change of its origin, with the edit that has to come first."""
    name, kind = name_of(reader), "mirror" if reader.get("mirror") else "aggregate"
    if f"`{name}`" not in hazard.evidence:
        hazard = hazard._replace(evidence=f"`{name}` reads from `{name_of(origin)}`: {hazard.evidence}")
    history = origin.get("max_msgs_per_subject", -1)
    if hazard.name != SHORTER_HISTORY or history <= 0:
        return hazard
    return hazard._replace(remedy=f"First `kvctl {kind} edit {name} --history {history}`, then repeat")


def name_of(stream: StreamConfig | SourceConfig) -> str:
    """Return the name of a stream in messages."""
    return str(stream["name"]).removeprefix(STREAM_PREFIX)


def _answers(config: StreamConfig, origin: StreamConfig) -> Iterator[Hazard]:
    """Yield the hazards of answering the origin's reads, as servers have every mirror of a direct-get stream do."""
    name, of, mirror = config["name"], name_of(origin), config["mirror"]
    rules = parse(mirror.get("subject_transforms") or ())
    renamed = [rule for rule in rules if rule.dest and rule.dest != rule.src]
    filtered = bool(mirror.get("filter_subject") or rules) and not renamed
    if not origin.get("allow_direct"):
        if not filtered:
            yield Hazard(
                ORIGIN_NOT_DIRECT,
                f"`{of}` does not allow direct gets, so `{name}` would serve none of its reads",
                "Set `allow_direct` on the origin, then create the mirror",
            )
        return
    if filtered:
        yield Hazard(
            FILTERED_MIRROR,
            f"`{name}` would answer reads of `{of}` from nearby clients, with `not found` for every key outside "
            "its filter",
            f"`kvctl aggregate create NAME --origin {of} --keys ...` replicates some of the keys safely",
        )
    if renamed:
        yield Hazard(
            RENAMING_MIRROR,
            f"`{name}` stores `{renamed[0].src}` as `{renamed[0].dest}`, and would answer reads of `{of}` from "
            "nearby clients with `not found`",
            f"`kvctl aggregate create NAME --origin {of} --map ...` renames keys safely",
        )


def unserved(config: StreamConfig, origin: StreamConfig) -> Hazard | None:
    """Return the finding on a mirror that does not answer reads, because its origin allowed direct gets only later.

    Servers decide `mirror_direct` when a mirror is created or edited (ADR-59). A filtered one had better not answer.
    """
    able = config.get("mirror") and origin.get("allow_direct") and not [*_answers(config, origin)]
    if not able or config.get("mirror_direct"):
        return None
    name, of = name_of(config), name_of(origin)
    text = f"`{name}` answers no reads of `{of}`, which allowed direct gets after the mirror was created"
    return Hazard(MIRROR_NOT_DIRECT, text, f"`kvctl stream edit {config['name']} --set mirror_direct=true`")


def _justified(config: StreamConfig, origin: StreamConfig, origins: Iterable[StreamConfig | None]) -> bool:
    """Return whether another origin's keys live, or may live, as long as the aggregate's."""
    age = config.get("max_age", 0)
    ages = [other.get("max_age", 0) if other is not None else 0 for other in origins if other is not origin]
    return any(not other or (age and other >= age) for other in ages)


def _ages(config: StreamConfig, origin: StreamConfig, *, justified: bool = False) -> Iterator[Hazard]:
    age, theirs = config.get("max_age", 0), origin.get("max_age", 0)
    name, of = name_of(config), name_of(origin)
    if age and (not theirs or age < theirs):
        yield Hazard(
            SHORTER_TTL,
            f"ttl {_age(age)} is shorter than that of `{of}` ({_age(theirs)}): keys live there would be missing here",
        )
    if theirs and (not age or age > theirs) and not justified:
        yield Hazard(
            TTL_NOT_INHERITED,
            f"ttl {_age(age)} is longer than that of `{of}` ({_age(theirs)}): `{name}` would serve keys that expired "
            "there",
        )
    elif origin.get("allow_msg_ttl") and not config.get("allow_msg_ttl"):
        yield Hazard(
            TTL_NOT_INHERITED,
            f"`{of}` allows per-key TTLs, which `{name}` does not: it would keep expired keys permanently",
        )


def _history(
    config: StreamConfig, origin: StreamConfig, origins: Iterable[StreamConfig | None] = ()
) -> Iterator[Hazard]:
    """Yield the hazards of another history than the origin's; `origins` are all those of an aggregate.

    Keys with ttls of their own may expire one by one: then the one before is the value again, where it is kept.
    """
    mine, theirs = config.get("max_msgs_per_subject", -1), origin.get("max_msgs_per_subject", -1)
    of, expiring, limit = name_of(origin), origin.get("allow_msg_ttl"), theirs if theirs > 0 else "no limit"
    if mine > 0 and (theirs <= 0 or mine < theirs) and (config.get("mirror") or expiring):
        kept = f"`{name_of(config)}` keeps {counted(mine, 'revision')}, fewer than `{of}` ({limit})"
        text = (
            f"Mirror {kept}: clients near it would miss older ones"
            if config.get("mirror")
            else f"{kept}: if the last revision of a key expires in `{of}`, the one before would be missing here"
        )
        yield Hazard(SHORTER_HISTORY, text)
    others = [other.get("max_msgs_per_subject", -1) for other in origins if other is not None]
    needed = any(other <= 0 or other >= mine > 0 for other in others)
    if expiring and 0 < theirs and (mine <= 0 or mine > theirs) and not needed:
        text = f"history {mine if mine > 0 else 'without limit'} is longer than that of `{of}` ({theirs})"
        yield Hazard(LONGER_HISTORY, f"{text}: if a key expires there, `{name_of(config)}` would serve an older value")


def _limits(config: StreamConfig, origins: Sequence[StreamConfig | None]) -> Iterator[Hazard]:
    for item in limits.shortfalls(config, origins):
        if item.certain:
            yield Hazard(SMALLER_LIMITS, item.evidence, "Leave the limit of the replica out: it then holds everything")


def full(config: StreamConfig, held: int) -> list[Hazard]:
    """Return the hazard of a size limit below what the origins already hold."""
    limit = config.get("max_bytes", -1)
    if not 0 < limit < held:
        return []
    text = f"max-bytes {format_size(limit)} is below what the origins hold ({format_size(held)})"
    return [Hazard(SMALLER_LIMITS, f"{text}: replication would silently stop when full")]


def _outside(config: StreamConfig) -> Iterator[Hazard]:
    own = f"{SUBJECT_PREFIX}{name_of(config)}."
    for source in config.get("sources") or ():
        for pattern in landing(source):
            if not pattern.startswith(own):
                yield Hazard(
                    OUTSIDE_PREFIX,
                    f"Keys of `{name_of(source)}` land as `{pattern}`, outside `{own}>`, where no client finds them",
                )


def _collisions(config: StreamConfig) -> Iterator[Hazard]:
    sources = config.get("sources") or []
    own = f"{SUBJECT_PREFIX}{name_of(config)}."
    for source in sources:
        for rule in parse(source.get("subject_transforms") or ()):
            if (lost := _dropped(rule)) is not None:
                yield Hazard(KEY_COLLISION, f"Keys of `{name_of(source)}` that differ only in {lost} become one key")
    for one, other in overlaps(config):
        if one.pattern == other.pattern:
            text = f"{whose(one, other)} have the same destination (`{one.pattern.removeprefix(own)}`)"
            yield Hazard(KEY_COLLISION, f"{text}: {COLLISION}", "Give each origin its own prefix: `bucket=B,prefix=b`")


def _window(config: StreamConfig) -> Iterator[Hazard]:
    if window := config.get("duplicate_window", 0):
        yield Hazard(
            DUPLICATE_WINDOW,
            f"Duplicate window of {_age(window)}: of two entries with the same message id, from any origin, the "
            "second is dropped",
        )


def _rules(source: SourceConfig) -> list[Transform]:
    everything = Transform(source.get("filter_subject") or ">", "")
    return parse(source.get("subject_transforms") or ()) or [everything]


def _dropped(rule: Transform) -> str | None:
    """Return the tokens that a rule leaves out, in words; None if it keeps all."""
    try:
        lost = rule.dropped
    except UnknownTransform:
        return "tokens that a transform function leaves out"
    tokens = [at - 1 for at, token in enumerate(rule.src.split(".")) if token in ("*", ">")]  # after `$KV` and bucket
    return ", ".join(f"token {tokens[number - 1]}" for number in lost) or None


def _pattern(rule: Transform) -> str:
    try:
        return rule.pattern
    except UnknownTransform:
        return ".".join("*" if "{{" in token else token for token in rule.dest.split("."))


def _age(nanoseconds: int) -> str:
    return format_duration(duration_from_ns(nanoseconds)) if nanoseconds else "none"
