"""Records of all commands: the fields of their JSON objects, and which of them are columns of tsv. [pure]

Field names are part of the interface. They change only with the major version, and a new column is the last one. The
columns of a listing are those of its table: tests compare them for every listing that they print.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property


class PrintedRecord:
    """Kind of JSON object, with its fields in order; parsed on first use, as a command prints few of all these."""

    def __init__(self, text: str, table: str = "") -> None:
        self._text = text
        self._table = table

    @cached_property
    def fields(self) -> tuple[str, ...]:
        """Return the names of all fields."""
        return tuple(word.strip("(?)") for word in self._text.split())

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Return the columns of tsv without `--columns`."""
        return tuple(self.headings)

    @cached_property
    def headings(self) -> dict[str, str]:
        """Return the heading of each column, as words."""
        words = (self._table or self._text).split()
        parts = (word.strip("?").partition("=") for word in words if not word.startswith("("))
        return {name: (heading or _HEADINGS.get(name, name)).replace("_", " ") for name, _, heading in parts}

    @cached_property
    def optional(self) -> frozenset[str]:
        """Return the fields that are present only if they are known or apply."""
        return frozenset(word.strip("(?)") for word in self._text.split() if "?" in word)


def record(text: str, table: str = "") -> PrintedRecord:
    """Declare a list of fields: `name`, `name?` if it is optional, `(name)` if it is not a column of tsv.

    The columns of a listing are those of its `table`, in its order, `name=heading` where that is not usual. It may have
    columns that JSON lacks, texts that are made of other fields.
    """
    return PrintedRecord(text, table)


_HEADINGS = {
    "bytes": "size",
    "id": "commit",
    "lag": "behind",
    "last_seen": "seen",
    "seconds": "time",
    "values": "entries",
}
"""Usual headings of fields, where they are not their names."""

ANY = record("")
"""Document whose fields are defined elsewhere: a stream's configuration, a topology file, a JSON Schema."""

CHANGE = record("name changed")
SEAL = record("name sealed changed")

# Keys
ENTRY = record("bucket key revision created operation value encoding (reason?) (delta?) (stream?) (ttl?) (headers?)")
ENTRY_META = record("bucket key revision created operation size (reason?) (delta?) (stream?) (ttl?) (headers?)")
ENTRY_AT_REF = record(
    "bucket (ref) key revision? created? operation value encoding (identity) (commit?) (author?) (message?)"
)
WATCH_EVENT = record("(event)")
KEY = record("key (revision) (created) (operation?)")
KEY_AT_REF = record("key (revision?) (identity)")
KEY_COUNT = record("(bucket) (ref?) count")
WRITE = record("(bucket) (key) revision")
WRITE_AT_REF = record("(bucket) (ref) (key) revision (identity)")
REMOVAL_PLAN = record("(bucket) key")
REMOVAL_PLAN_AT_REF = record("(bucket) (ref) key")
COPY_PLAN = record("operation bucket key")
TXN = record("(key) (operation) revision")
TXN_PLAN = record("key operation")
TXN_FAILURE = record("key condition expected (encoding?) found")
LOADED = record("written unchanged rejected (evicted?)")
DUMPED = record("bucket file entries cut exact")

# Buckets, mirrors, aggregates
BUCKET_ROW = record(
    "name stream kind values bytes history ttl replicas last_revision created origins description last_write "
    "cluster state",
    "name kind values bytes history ttl replicas last_write state cluster created description",
)
BUCKET = record(
    "name stream kind description backing_store compressed values history bytes ttl last_revision created replicas "
    "(cluster) (origins) (alternates) (answered_by) (dependents) (config) state last_write"
)
ALTERNATE = record(
    "order served_by role cluster domain leader state entries_behind last_seen round_trip here name",
    "order=# served_by role cluster domain leader state entries_behind=behind last_seen round_trip here",
)
BUCKET_CHANGE = record("name stream changed")
BUCKET_EDIT = record("name stream changed differences")
BUCKET_DELETION = record("name stream kind values dependents changed?")
BUCKET_COPY = record("name stream changed entries")
DIFFERENCE = record("field before after")
KEY_DIFFERENCE = record("key difference revision other_revision", "key difference revision other_revision=in_other")
DELETED_KEY = record("key revision created operation", "key revision created operation")
COMPACTION = record("name deleted messages kept")
MANIFEST = record("name stream created server messages bytes keys first_revision last_revision files")
RESTORED = record("name stream changed entries last_revision")
REPLICA_ROW = record(
    "name stream origins values bytes history ttl replicas lag state last_seen error last_revision created "
    "description cluster",
    "name origins state lag last_seen values bytes history ttl cluster error description",
)
REPLICA_CHANGE = record("name stream origins changed")
PROMOTION = record("name stream entries mirror_deleted changed")
ORIGIN_REMOVAL = record("name stream origins removed kept changed")

# Topologies
PLANNED_CHANGE = record(
    "action kind name place (stream) differences (hazards) (drops) (leaving) (readers) (confirm) (config) (entries)"
)
PLAN = record("(changes) (summary) (hazards) (warnings) (unlisted)")
APPLIED_CHANGE = record(
    "action kind name place (stream) (hazards) (drops) (leaving) (readers) (confirm) (config) (entries) outcome "
    "differences"
)
NAME = record("name")
GRAPH = record("(nodes) (edges)")
STATUS = record(
    "replica stream kind context domain cluster origin origin_stream origin_context origin_domain origin_api "
    "origin_cluster keys state lag last_seen error revision origin_revision created origin_created evidence "
    "prefix map transforms",
    "replica origin kind state lag last_seen keys lands_as=land_as revision origin_revision=origin_at cluster domain "
    "context origin_domain evidence",
)
TRACE = record(
    "role depth via name key state revision evidence stream kind context domain api cluster subject created "
    "operation keys prefix map transforms end"
)
TRACE_TREE = record(
    "name stream kind context domain api cluster key subject state evidence revision created operation keys "
    "prefix map transforms end (origins) (replicas) (offline)"
)
AUDIT = record(
    "origin replica kind origin_at context keys missing extra stale differing collisions local expiring "
    "consistent causes error samples state",
    "origin replica consistent=result keys missing extra stale differing collisions local expiring state "
    "origin_at=at context=in causes error",
)
AUDIT_DIFFERENCE = record(
    "origin replica key difference origin_key origin_revision revision cause",
    "origin replica key difference origin_revision=at_origin revision=in_replica cause",
)
REPAIR = record("replica kind action refill overwrite purge")
FINDING = record("severity check subject evidence remedy")

# Streams and consumers
STREAM_ROW = record(
    "name kind subjects messages bytes consumers last_sequence replicas storage created description state",
    "name kind subjects messages bytes consumers replicas state created description",
)
STREAM = record(
    "name kind subjects messages bytes consumers last_sequence replicas storage created description retention "
    "first_sequence (first_time) (last_time) (subject_count) (deleted_messages) (cluster) (origins) (alternates) "
    "(config) state"
)
STREAM_EDIT = record("name changed differences")
STREAM_DELETION = record("name messages consumers dependents changed?")
STREAM_PURGE = record("name messages dependents?")
SUBJECT = record("subject messages")
STORED_MESSAGE = record("stream subject sequence time headers data encoding pending last_sequence up_to_sequence")
MESSAGE_DELETION = record("stream sequence")
CONSUMER_ROW = record(
    "stream name durable filters deliver_policy ack_policy pending ack_pending redelivered waiting paused created "
    "description",
    "name filters deliver_policy=delivers ack_policy=acks pending ack_pending paused created description",
)
CONSUMER = record(
    "stream name durable filters deliver_policy ack_policy pending ack_pending redelivered waiting paused created "
    "description (delivered) (ack_floor) (pause_remaining) (push_bound) (cluster) (config)"
)
CONSUMER_CHANGE = record("stream name changed")
CONSUMER_EDIT = record("stream name changed differences")
CONSUMER_PAUSE = record("stream name paused until")
CONSUMER_DELETION_PLAN = record("stream name ack_pending pending")
DELIVERED_MESSAGE = record(
    "stream consumer subject sequence consumer_sequence delivered pending time headers data encoding"
)

# Tables
TABLE_ROW = record(
    "name stream partitions partition_streams sealed replicas storage bytes created description",
    "name partitions sealed replicas bytes created description",
)
TABLE = record(
    "name stream partitions partition_streams sealed replicas storage bytes created description entries ttl "
    "(metadata) (partition_details)"
)
TABLE_CREATION = record("name stream partitions changed")
TABLE_COMPACTION = record("name markers changed")
TABLE_DELETION_PLAN = record("name streams")
TABLE_WRITE = record("(key) (key_encoding?) (family) version")
TABLE_KEY = record("key key_encoding family version")
TABLE_ENTRY = record("key key_encoding family value encoding version")
TABLE_EXISTS = record("(key) (key_encoding) (family) exists")
TABLE_KEY_PAGE = record("(keys) (next)")
TABLE_ENTRY_PAGE = record("(entries) (next)")
TABLE_NEXT = record("(next)")

# Versioned buckets
REPOSITORY_ROW = record(
    "name stream replicas storage bytes created description", "name replicas bytes created description"
)
REPOSITORY = record("name stream replicas storage bytes created description compressed records metadata branches tags")
REPOSITORY_CHANGE = record("name stream changed")
REPOSITORY_DELETION = record("name stream dependents changed?")
COMMIT = record("id root parents message author created meta generation", "id author created message")
NEW_COMMIT = record("id (root) (parents) (message) (author) (created) (meta) (generation)")
STAGED_KEY = record("change key")
BRANCH_STATUS = record("(repository) (branch) (commit) (changes)")
KEY_CHANGE = record("change key before after")
MERGE_CONFLICT = record("change key base source dest")
REF = record("name commit")
BRANCH_ROW = record("name commit staged created message")
TAG_ROW = record("name commit created message")
TAG = record("name repository commit (last)")
BRANCH = record("name repository commit staged (last)")
REF_CHANGE = record("name repository commit changed?")
BRANCH_DELETION = record("name repository commit staged changed?")
RESET = record("repository branch keys changed")
CHECKOUT = record("repository ref commit bucket written removed unchanged conflicts")
CHECKOUT_STEP = record("change key revision")
ANNOTATION = record("key commit author created message", "key commit author created message")
COLLECTION = record("(name) commits objects epochs")

# Pipeline
EXPORT = record("bucket path format mode cut ref exact rows files bytes removed seconds")
EXPORT_PLAN = record("bucket path format mode cut? ref? removed")
VERIFIED = record("path bucket format mode cut rows files bytes whole (damage) seconds")
PIPELINE_LOADED = record("bucket path created rows written unchanged rejected seconds")
CAPTURED = record("bucket path mode version revision rows files captured seconds")
COMPACTED = record("bucket path version files bytes added removed vacuumed")
BUCKET_STATISTICS = record(
    "name last_revision history keys deleted entries bytes held changed_today oldest newest writes_a_day (prefixes) "
    "more_prefixes (largest) stored"
)
PIPELINE_COMMIT_PLAN = record("repository branch rows")
RAN = record("statements seconds")
PIPELINE_PLAN = record("statement (plan)")
SPARK = record("spark java master workers to")

# Connections and servers
CONTEXT_ROW = record("name url authentication selected description", "name selected url authentication description")
CONTEXT = record(
    "name url user password token creds nkey user_jwt user_seed cert key ca tls_first domain api_prefix inbox_prefix "
    "read_only description authentication url_from?"
)
CONTEXT_TEST = record("name url (url_from) usable (error) (server) rtt (jetstream) (permissions)")
SERVER = record("url (pid) (store) (temporary)")
LAB = record("(lab) (config_home) (contexts)")
LAB_CONTEXT = record("name url (user) (domain) (api_prefix) description (servers)")
LAB_SERVER = record("name lab running changed")
COMPLETION = record("shell path changed lines")
VERSION = record("version python")

VALUE = record("value encoding")
PARTS: dict[str, tuple[PrintedRecord, ...]] = {
    "ack_floor": (record("sequence consumer_sequence last_active"),),
    "answered_by": (record("stream"),),
    "base": (VALUE,),
    "before": (VALUE,),
    "after": (VALUE,),
    "branches": (REF,),
    "changes": (PLANNED_CHANGE, APPLIED_CHANGE, STAGED_KEY),
    "cluster": (record("name leader replicas"),),
    "conflicts": (record("key"),),
    "contexts": (LAB_CONTEXT,),
    "damage": (record("file problem"),),
    "delivered": (record("sequence consumer_sequence last_active"),),
    "dependents": (record("name stream kind state lag last_seen error last_revision recreated?"), NAME),
    "dest": (VALUE,),
    "differences": (DIFFERENCE, KEY_DIFFERENCE),
    "drops": (record("entries bytes refilled"),),
    "edges": (record("origin replica keys prefix map transforms state? evidence? lag? last_seen? error?"),),
    "entries": (TABLE_ENTRY, record("key")),
    "files": (record("name bytes sha256"),),
    "found": (record("revision operation value encoding"),),
    "hazards": (record("name change evidence remedy forced"), NAME),
    "jetstream": (record("domain memory storage streams consumers limits tiers"),),
    "keys": (record("key"), TABLE_KEY),
    "largest": (record("key bytes"),),
    "last": (COMMIT,),
    "leaving": (NAME,),
    "limits": (record("memory storage streams consumers"),),
    "nodes": (record("id name stream kind context domain api cluster state"),),
    "partition_details": (record("partition range stream leader entries"),),
    "permissions": (record("action subject allowed reason"),),
    "prefixes": (record("prefix keys deleted entries bytes held changed_today oldest newest writes_a_day"),),
    "readers": (NAME,),
    "samples": (AUDIT_DIFFERENCE,),
    "server": (record("name version url cluster domain tls max_payload"),),
    "source": (VALUE,),
    "sources": (record("name source"),),
    "streams": (NAME,),
    "tags": (REF,),
    "transforms": (record("src dest"),),
    "unlisted": (record("kind name place"),),
    "workers": (record("host python kvctl"),),
}
"""Field -> objects in it, wherever it appears. Configurations, headers and metadata have the names of their owners."""


def fields_of(records: Iterable[PrintedRecord]) -> list[str]:
    """Return all names that `--columns` can pick: the fields of a command's records, and further columns of tables."""
    return list(dict.fromkeys(name for kind in records for name in (*kind.fields, *kind.columns)))


def field_named(word: str, records: Sequence[PrintedRecord]) -> str | None:
    """Return the field that a name or a heading means, in any case; None for an unknown word."""
    known, wanted = fields_of(records), word.strip().lower().replace("_", " ")
    headings = {heading: name for kind in reversed(records) for name, heading in kind.headings.items()}
    usual = {heading: name for name, heading in (*_HEADINGS.items(), ("created", "age"))}
    found = (usual | headings | {name.replace("_", " "): name for name in known}).get(wanted)
    return found if found in known else None
