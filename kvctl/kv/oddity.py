"""Settings of streams that ADR-8's buckets do not have: their effects, and how to change them. [pure]"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from kvctl.kv.names import STREAM_PREFIX, SUBJECT_PREFIX
from kvctl.kv.stream_kind import Kind, kind_of
from kvctl.phrases import counted, quoted

if TYPE_CHECKING:
    from kvctl.jetstream.stream_info import StreamConfig

ERROR, WARNING, NOTE = "error", "warning", "note"
WRITES, BULK = "writes", "bulk writes"
"""Operations that kvctl refuses: their entries would be lost, or nobody could tell if they were stored."""
LONGEST_HISTORY = 64
"""Maximum history of a bucket (ADR-8)."""
HEADER_BYTES = 150
"""Size of a value's limit under which deletions and conditional writes may not fit: they are headers."""
READER_NS = 30 * 10**9
"""Inactivity after which a server deletes kvctl's consumers; it refuses them if the stream allows less."""

_KEPT = (Kind.BUCKET, Kind.AGGREGATE)
_NO_BUCKET = (Kind.STREAM,)
_SUBJECTS = "`kvctl stream edit {stream} --set 'subjects=[\"{keys}\"]'`"
_CANNOT_CHANGE = "This setting is permanent: copy the keys to another bucket with `kvctl bucket copy {bucket} NEW`"


class Oddity(NamedTuple):
    """Setting with its effect: the name and severity of doctor's finding, and texts with fields of the stream."""

    name: str
    severity: str
    applies: Callable[[StreamConfig], object]
    text: str
    remedy: str
    refuses: str = ""
    """Operation that kvctl refuses on such a stream."""
    kinds: tuple[Kind, ...] = _KEPT
    loses: bool = False
    """True if stored entries disappear, though writes are not refused."""

    def evidence(self, stream: StreamConfig) -> str:
        """Return what the setting does to this stream."""
        return self.text.format_map(_facts(stream))

    def fix(self, stream: StreamConfig) -> str:
        """Return the remedy for this stream."""
        return self.remedy.format_map(_facts(stream))


def _set(change: str) -> str:
    return f"`kvctl stream edit {{stream}} --set {change}`"


def _limited(stream: StreamConfig) -> bool:
    return any(stream.get(field, -1) > 0 for field in ("max_bytes", "max_msgs"))


def _discards_old(stream: StreamConfig) -> bool:
    return bool(stream.get("discard", "old") == "old")


def _renames(stream: StreamConfig) -> bool:
    transform = stream.get("subject_transform") or {}
    return bool(stream.get("subjects")) and transform.get("dest") not in (None, "", transform.get("src") or ">")


def _keys(stream: StreamConfig) -> str:
    return f"{SUBJECT_PREFIX}{stream['name'].removeprefix(STREAM_PREFIX)}.>"


def _others(stream: StreamConfig) -> list[str]:
    return [subject for subject in stream.get("subjects") or () if subject != _keys(stream)]


def _narrow(stream: StreamConfig) -> bool:
    subjects = stream.get("subjects") or ()
    return not stream.get("mirror") and _keys(stream) not in subjects and not (stream.get("sources") and not subjects)


def _facts(stream: StreamConfig) -> dict[str, object]:
    transform = stream.get("subject_transform") or {}
    return {
        **stream,
        "stream": stream["name"],
        "bucket": stream["name"].removeprefix(STREAM_PREFIX),
        "keys": _keys(stream),
        "entries": counted(max(stream.get("max_msgs_per_subject", 0), 0), "entry"),
        "others": quoted(_others(stream)) or "none",
        "origin": (stream.get("mirror") or {}).get("name", "").removeprefix(STREAM_PREFIX),
        "source": transform.get("src") or ">",
        "target": transform.get("dest"),
    }


ODDITIES = (
    Oddity(
        "interest-retention",
        ERROR,
        lambda stream: stream.get("retention") == "interest",
        "Retention is `interest`: entries are deleted once all consumers acknowledged them, without any immediately",
        _set("retention=limits"),
        WRITES,
    ),
    Oddity(
        "workqueue-retention",
        ERROR,
        lambda stream: stream.get("retention") == "workqueue",
        "Retention is `workqueue`: entries are deleted once a consumer acknowledged them, and cannot be listed",
        "Use another bucket: the retention of a work queue cannot be changed",
        WRITES,
    ),
    Oddity(
        "renamed-keys",
        ERROR,
        _renames,
        "Stream `{stream}` stores `{source}` as `{target}`: a key is not found after a put",
        _set("subject_transform=null"),
        WRITES,
    ),
    Oddity(
        "counters",
        WARNING,
        lambda stream: stream.get("allow_msg_counter"),
        "Its values are counters: the server refuses puts, deletions and purges",
        "Use another bucket for values: this setting is permanent",
    ),
    Oddity(
        "no-ack",
        WARNING,
        lambda stream: stream.get("no_ack"),
        "Writes are not acknowledged (`no_ack`): each is looked up, and other clients report timeouts",
        _set("no_ack=false"),
        BULK,
    ),
    Oddity(
        "async-persist",
        WARNING,
        lambda stream: stream.get("persist_mode") == "async",
        "Writes are acknowledged before they are stored (`persist_mode: async`): a server that is killed loses them",
        _CANNOT_CHANGE,
    ),
    Oddity(
        "written-once",
        WARNING,
        lambda stream: stream.get("discard_new_per_subject"),
        "A key with {entries} accepts only purges, no other writes (`discard_new_per_subject`)",
        _set("discard_new_per_subject=false"),
    ),
    Oddity(
        "discards-old",
        WARNING,
        lambda stream: _limited(stream) and _discards_old(stream),
        "When full, the oldest keys are silently deleted: ADR-8 buckets refuse new keys instead",
        _set("discard=new"),
        kinds=(Kind.BUCKET,),
        loses=True,
    ),
    Oddity(
        "discards-old",
        WARNING,
        lambda stream: _limited(stream) and _discards_old(stream),
        "When full, the oldest keys are silently deleted here, though the origin has them",
        "Remove the limit: `kvctl stream edit {stream} --set max_bytes=-1 --set max_msgs=-1`",
        kinds=(Kind.AGGREGATE, Kind.MIRROR),
        loses=True,
    ),
    Oddity(
        "max-consumers",
        WARNING,
        lambda stream: stream.get("max_consumers", -1) > 0,
        "It allows {max_consumers} consumers, and each watch and each listing needs one",
        _set("max_consumers=-1"),
        kinds=(*_KEPT, Kind.MIRROR),
    ),
    Oddity(
        "consumer-limits",
        WARNING,
        lambda stream: 0 < (stream.get("consumer_limits") or {}).get("inactive_threshold", 0) < READER_NS,
        "Its consumers may be inactive for less than 30s: listings, watches and dumps are refused",
        _set("consumer_limits=null"),
        kinds=(*_KEPT, Kind.MIRROR),
    ),
    Oddity(
        "small-values",
        WARNING,
        lambda stream: 0 < stream.get("max_msg_size", -1) < HEADER_BYTES,
        "Values and headers have at most {max_msg_size} bytes: deletions and conditional writes may not fit",
        "`kvctl bucket edit {bucket} --max-value-size 1KB`",
    ),
    Oddity(
        "no-direct-get",
        WARNING,
        lambda stream: not stream.get("allow_direct"),
        "Direct gets are off: every read goes to the leader, and mirrors serve none",
        _set("allow_direct=true"),
    ),
    Oddity(
        "no-rollup",
        WARNING,
        lambda stream: not (stream.get("allow_rollup_hdrs") or stream.get("sealed") or stream.get("deny_purge")),
        "Rollups are off: purges are refused",
        _set("allow_rollup_hdrs=true"),
        kinds=(Kind.BUCKET,),
    ),
    Oddity(
        "deny-purge",
        WARNING,
        lambda stream: stream.get("deny_purge") and not stream.get("sealed"),
        "Purges are denied: deleted values stay in the history, and `kvctl purge` is refused",
        _CANNOT_CHANGE,
        kinds=(Kind.BUCKET,),
    ),
    Oddity(
        "deny-purge",
        NOTE,
        lambda stream: stream.get("deny_purge"),
        "Purges are denied: keys purged at an origin stay readable here",
        "`kvctl help topologies`",
        kinds=(Kind.AGGREGATE, Kind.MIRROR),
    ),
    Oddity(
        "other-subjects",
        WARNING,
        lambda stream: stream.get("subjects") and _others(stream),
        "It also stores messages of {others}, which are not keys: they take revisions and space",
        _SUBJECTS,
    ),
    Oddity(
        "message-deletes",
        NOTE,
        lambda stream: not stream.get("deny_delete") and not stream.get("sealed"),
        "Single entries can be deleted without a trace: ADR-8 buckets deny it",
        _set("deny_delete=true"),
        kinds=(Kind.BUCKET,),
    ),
    Oddity(
        "max-entries",
        NOTE,
        lambda stream: stream.get("max_msgs", -1) > 0 and not _discards_old(stream),
        "It holds at most {max_msgs} entries, history and deletions included; then new keys are refused",
        _set("max_msgs=-1"),
    ),
    Oddity(
        "long-history",
        NOTE,
        lambda stream: stream.get("max_msgs_per_subject", 0) > LONGEST_HISTORY,
        "It keeps {entries} of each key, and ADR-8 buckets 64 at most",
        "`kvctl bucket edit {bucket} --history 64`, which removes older ones",
        kinds=(Kind.BUCKET,),
    ),
    Oddity(
        "sealed",
        NOTE,
        lambda stream: stream.get("sealed"),
        "It is sealed, which makes it permanently read-only",
        "`kvctl bucket copy {bucket} NEW` creates one that can be written",
        kinds=(Kind.BUCKET,),
    ),
    Oddity(
        "mirror-name",
        NOTE,
        lambda stream: stream["name"].startswith(STREAM_PREFIX),
        "A mirror with a bucket's stream name (`{stream}`): other clients open it and find no keys",
        "Create a mirror that serves the origin's name: `kvctl mirror create {bucket}_COPY --origin {origin}`",
        kinds=(Kind.MIRROR,),
    ),
    Oddity("subjects", NOTE, _narrow, "its subjects are {others} instead of `{keys}`", _SUBJECTS, kinds=_NO_BUCKET),
    Oddity(
        "unlimited-history",
        NOTE,
        lambda stream: stream.get("max_msgs_per_subject", 0) < 1,
        "it keeps all entries of each key instead of 1 to 64",
        "`kvctl stream edit {stream} --set max_msgs_per_subject=64`, which removes older ones",
        kinds=_NO_BUCKET,
    ),
)
"""Settings by severity. A stream with two rows of one name has the first that applies to its kind."""


def oddities(stream: StreamConfig, kind: Kind | None = None) -> Iterator[Oddity]:
    """Yield the settings of a bucket, aggregate, mirror, or stream named like one, that ADR-8 does not have."""
    kind = kind or kind_of(stream)
    return (row for row in ODDITIES if kind in row.kinds and row.applies(stream))


def refusal(stream: StreamConfig, operation: str) -> Oddity | None:
    """Return the setting for which kvctl refuses an operation; None if it does not."""
    refused = {WRITES, operation}  # what no write is accepted for, no bulk write is
    return next((row for row in ODDITIES if row.refuses in refused and row.applies(stream)), None)


def loss(stream: StreamConfig) -> Oddity | None:
    """Return the setting by which stored entries may have disappeared without a trace; None if there is none."""
    return next((row for row in oddities(stream) if row.loses or row.refuses == WRITES), None)
