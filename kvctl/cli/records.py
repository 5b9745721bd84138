"""Records of all commands: the fields of their JSON objects, and which of them are columns of tsv. [pure]

Field names are part of the interface. They change only with the major version, and a new column is the last one.
"""

import re
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Record:
    """Kind of JSON object, with its fields in order."""

    fields: tuple[str, ...]
    columns: tuple[str, ...]
    """Fields that are columns of tsv without `--columns`."""
    optional: frozenset[str]
    """Fields that are present only if they are known or apply."""


def record(text: str) -> Record:
    """Parse a list of fields: `name`, `name?` if it is optional, `(name)` if it is not a column of tsv."""
    words = text.split()
    names = tuple(word.strip("(?)") for word in words)
    columns = tuple(name for name, word in zip(names, words, strict=True) if not word.startswith("("))
    return Record(names, columns, frozenset(name for name, word in zip(names, words, strict=True) if "?" in word))


ANY = Record((), (), frozenset())
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
LOADED = record("written unchanged rejected")
DUMPED = record("bucket file entries cut exact")

# Buckets, mirrors, aggregates
BUCKET_ROW = record(
    "name stream kind values bytes history ttl replicas last_revision created origins description last_write cluster "
    "state"
)
BUCKET = record(
    "name stream kind description backing_store compressed values history bytes ttl last_revision created replicas "
    "(cluster) (origins) (alternates) (answered_by) (dependents) (config) state"
)
ALTERNATE = record("order served_by role cluster domain leader state entries_behind last_seen round_trip here (name)")
BUCKET_CHANGE = record("name stream changed")
BUCKET_EDIT = record("name stream changed differences")
BUCKET_DELETION = record("name stream kind values dependents changed?")
BUCKET_COPY = record("name stream changed entries")
DIFFERENCE = record("field before after")
KEY_DIFFERENCE = record("key difference revision other_revision")
DELETED_KEY = record("key revision created operation")
COMPACTION = record("name deleted messages kept")
MANIFEST = record("name stream created server messages bytes keys first_revision last_revision files")
RESTORED = record("name stream changed entries last_revision")
REPLICA_ROW = record(
    "name stream origins values bytes history ttl replicas lag state last_seen error last_revision created description "
    "cluster"
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
    "prefix map transforms"
)
TRACE = record(
    "role depth via name key state revision evidence stream kind context domain api cluster subject created operation "
    "keys prefix map transforms end"
)
TRACE_TREE = record(
    "name stream kind context domain api cluster key subject state evidence revision created operation keys prefix map "
    "transforms end (origins) (replicas) (offline)"
)
AUDIT = record(
    "origin replica kind origin_at context keys missing extra stale differing collisions local expiring consistent "
    "causes error (samples) state"
)
AUDIT_DIFFERENCE = record("origin replica key difference origin_key origin_revision revision cause")
REPAIR = record("replica kind action refill overwrite purge")
FINDING = record("severity check subject evidence remedy")

# Streams and consumers
STREAM_ROW = record(
    "name kind subjects messages bytes consumers last_sequence replicas storage created description state"
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
    "description"
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
TABLE_ROW = record("name stream partitions partition_streams sealed replicas storage bytes created description")
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
REPOSITORY_ROW = record("name stream replicas storage bytes created description")
REPOSITORY = record("name stream replicas storage bytes created description compressed records metadata branches tags")
REPOSITORY_CHANGE = record("name stream changed")
REPOSITORY_DELETION = record("name stream dependents changed?")
COMMIT = record("id root parents message author created meta generation")
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
ANNOTATION = record("key commit author created message")
COLLECTION = record("(name) commits objects epochs")

# Pipeline
EXPORT = record("bucket path format mode cut ref exact rows files bytes removed seconds")
EXPORT_PLAN = record("bucket path format mode cut? ref? removed")
VERIFIED = record("path bucket format mode cut rows files bytes whole (damage) (against) seconds")
PIPELINE_LOADED = record("bucket path created rows written unchanged rejected seconds")
CAPTURED = record("bucket path checkpoint revision rows files captured seconds")
COMPACTED = record("bucket (capture) path revision keys files bytes captured (replaced) seconds")
BUCKET_STATISTICS = record(
    "name last_revision history keys deleted entries bytes held changed_today oldest newest writes_a_day (prefixes) "
    "more_prefixes (largest)"
)
PIPELINE_COMMIT_PLAN = record("repository branch rows")
RAN = record("statements seconds")
PIPELINE_PLAN = record("statement (plan)")
SPARK = record("spark java master workers")

# Connections and servers
CONTEXT_ROW = record("name url authentication selected description")
CONTEXT = record(
    "name url user password token creds nkey user_jwt user_seed cert key ca tls_first domain api_prefix inbox_prefix "
    "read_only description authentication url_from?"
)
CONTEXT_TEST = record("name url (url_from) usable (error) (server) rtt (jetstream) (permissions)")
SERVER = record("url (pid) (store) (temporary)")
LAB = record("(lab) (config_home) (contexts)")
LAB_CONTEXT = record("name url user domain api_prefix description")
VERSION = record("version python")

PRINTED: dict[str, tuple[Record, ...]] = {
    "get": (ENTRY, ENTRY_AT_REF),
    "history": (ENTRY, ENTRY_AT_REF),
    "watch": (ENTRY, ENTRY_META, WATCH_EVENT),
    "wait": (ENTRY,),
    "keys": (KEY, KEY_AT_REF, KEY_COUNT),
    "put": (WRITE, WRITE_AT_REF),
    "create": (WRITE, WRITE_AT_REF),
    "update": (WRITE, WRITE_AT_REF),
    "revert": (WRITE,),
    "touch": (WRITE,),
    "edit": (WRITE,),
    "delete": (WRITE, WRITE_AT_REF, REMOVAL_PLAN, REMOVAL_PLAN_AT_REF),
    "purge": (WRITE, REMOVAL_PLAN),
    "copy": (WRITE,),
    "rename": (WRITE, COPY_PLAN),
    "txn": (TXN, TXN_PLAN, TXN_FAILURE),
    "load": (LOADED,),
    "dump": (DUMPED,),
    "bucket add": (BUCKET_CHANGE, ANY),
    "bucket ls": (BUCKET_ROW,),
    "bucket show": (BUCKET,),
    "bucket alternates": (ALTERNATE,),
    "bucket edit": (BUCKET_EDIT, DIFFERENCE),
    "bucket seal": (SEAL,),
    "bucket stats": (BUCKET_STATISTICS,),
    "bucket delete": (BUCKET_DELETION, CHANGE),
    "bucket copy": (BUCKET_COPY, ANY),
    "bucket diff": (KEY_DIFFERENCE,),
    "bucket compact": (COMPACTION, DELETED_KEY),
    "bucket backup": (MANIFEST,),
    "bucket restore": (RESTORED, MANIFEST),
    "mirror create": (REPLICA_CHANGE, ANY),
    "mirror ls": (REPLICA_ROW,),
    "mirror show": (BUCKET,),
    "mirror edit": (BUCKET_EDIT, DIFFERENCE),
    "mirror promote": (PROMOTION, ANY),
    "mirror delete": (BUCKET_DELETION, CHANGE),
    "aggregate create": (REPLICA_CHANGE, ANY),
    "aggregate add-origin": (REPLICA_CHANGE, ANY),
    "aggregate remove-origin": (ORIGIN_REMOVAL, ANY),
    "aggregate ls": (REPLICA_ROW,),
    "aggregate show": (BUCKET,),
    "aggregate edit": (BUCKET_EDIT, DIFFERENCE),
    "aggregate delete": (BUCKET_DELETION, CHANGE),
    "topology plan": (PLANNED_CHANGE, PLAN),
    "topology apply": (APPLIED_CHANGE, PLANNED_CHANGE, PLAN),
    "topology destroy": (APPLIED_CHANGE, PLANNED_CHANGE, PLAN),
    "topology render": (ANY,),
    "topology export": (NAME, ANY),
    "topology schema": (ANY,),
    "topology graph": (NAME, GRAPH),
    "topology status": (STATUS,),
    "topology trace": (TRACE, TRACE_TREE),
    "topology audit": (AUDIT, AUDIT_DIFFERENCE, REPAIR),
    "doctor": (FINDING,),
    "stream ls": (STREAM_ROW,),
    "stream show": (STREAM,),
    "stream create": (CHANGE, ANY),
    "stream edit": (STREAM_EDIT, DIFFERENCE),
    "stream delete": (STREAM_DELETION, CHANGE),
    "stream purge": (STREAM_PURGE,),
    "stream subjects": (SUBJECT,),
    "stream get": (STORED_MESSAGE,),
    "stream delete-message": (MESSAGE_DELETION,),
    "consumer ls": (CONSUMER_ROW,),
    "consumer show": (CONSUMER,),
    "consumer add": (CONSUMER_CHANGE, ANY),
    "consumer edit": (CONSUMER_EDIT, DIFFERENCE),
    "consumer delete": (CONSUMER_CHANGE, CONSUMER_DELETION_PLAN, CHANGE),
    "consumer pause": (CONSUMER_PAUSE,),
    "consumer resume": (CONSUMER_PAUSE,),
    "consumer next": (DELIVERED_MESSAGE,),
    "consumer fetch": (DELIVERED_MESSAGE,),
    "consumer consume": (DELIVERED_MESSAGE,),
    "table create": (TABLE_CREATION,),
    "table ls": (TABLE_ROW,),
    "table show": (TABLE,),
    "table edit": (CHANGE, DIFFERENCE),
    "table seal": (SEAL,),
    "table compact": (TABLE_COMPACTION,),
    "table delete": (CHANGE, TABLE_DELETION_PLAN),
    "table put": (TABLE_WRITE,),
    "table put-if-absent": (TABLE_WRITE,),
    "table get": (TABLE_ENTRY,),
    "table exists": (TABLE_EXISTS,),
    "table remove": (TABLE_WRITE,),
    "table update": (TABLE_WRITE,),
    "table get-all": (TABLE_ENTRY,),
    "table keys": (TABLE_KEY, TABLE_KEY_PAGE, TABLE_NEXT),
    "table entries": (TABLE_ENTRY, TABLE_ENTRY_PAGE, TABLE_NEXT),
    "repo init": (REPOSITORY_CHANGE, ANY),
    "repo ls": (REPOSITORY_ROW,),
    "repo show": (REPOSITORY, COMMIT),
    "repo delete": (REPOSITORY_DELETION, CHANGE),
    "repo status": (STAGED_KEY, BRANCH_STATUS),
    "repo commit": (NEW_COMMIT,),
    "repo log": (COMMIT,),
    "repo diff": (KEY_CHANGE,),
    "repo merge": (NEW_COMMIT, KEY_CHANGE, MERGE_CONFLICT),
    "repo revert": (NEW_COMMIT, KEY_CHANGE, MERGE_CONFLICT),
    "repo cherry-pick": (NEW_COMMIT, KEY_CHANGE, MERGE_CONFLICT),
    "repo reset": (RESET, NEW_COMMIT, KEY_CHANGE),
    "repo merge-base": (NEW_COMMIT,),
    "repo checkout": (CHECKOUT, CHECKOUT_STEP),
    "repo annotate": (ANNOTATION,),
    "repo gc": (COLLECTION,),
    "branch ls": (BRANCH_ROW,),
    "branch show": (BRANCH,),
    "branch create": (REF_CHANGE,),
    "branch delete": (BRANCH_DELETION, CHANGE),
    "tag ls": (TAG_ROW,),
    "tag show": (TAG,),
    "tag create": (REF_CHANGE,),
    "tag delete": (REF_CHANGE, CHANGE),
    "pipeline audit": (AUDIT, AUDIT_DIFFERENCE),
    "pipeline capture": (CAPTURED,),
    "pipeline compact": (COMPACTED,),
    "pipeline check": (SPARK,),
    "pipeline commit": (NEW_COMMIT, PIPELINE_COMMIT_PLAN),
    "pipeline export": (EXPORT, EXPORT_PLAN),
    "pipeline load": (PIPELINE_LOADED,),
    "pipeline run": (RAN, PIPELINE_PLAN),
    "pipeline verify": (VERIFIED, KEY_DIFFERENCE),
    "context ls": (CONTEXT_ROW,),
    "context show": (CONTEXT,),
    "context add": (CONTEXT,),
    "context delete": (CHANGE,),
    "context edit": (DIFFERENCE,),
    "context test": (CONTEXT_TEST,),
    "server run": (SERVER, LAB_CONTEXT, LAB),
    "version": (VERSION,),
}
"""Command -> records that it prints, first the one of an ordinary call in tsv."""


VALUE = record("value encoding")
PARTS: dict[str, tuple[Record, ...]] = {
    "ack_floor": (record("sequence consumer_sequence last_active"),),
    "against": (record("bucket at revision missing extra differs differences"),),
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


def records_of(path: str) -> tuple[Record, ...]:
    """Return the records of a command by its path: `kvctl bucket ls`."""
    return PRINTED.get(path.removeprefix("kvctl "), ())


def fields_of(path: str) -> list[str]:
    """Return all fields of a command's records, which `--columns` can pick."""
    return list(dict.fromkeys(name for kind in records_of(path) for name in kind.fields))


_SECTION = re.compile(r"(?<=^## Fields\n).*?(?=^## )", re.DOTALL | re.MULTILINE)
_WIDTH = 78
_INTRODUCTION = """
Every command with a result, and the fields of its JSON objects in their order.
Fields in parentheses are not columns of tsv unless `--columns` names them.
Fields with a question mark are absent if they are unknown or do not apply. A
command with several lists has several kinds of objects, by its options.

"""


def with_field_list(topic: str) -> str:
    """Return the topic with its section of fields generated from the catalogue."""
    listed = "".join(f"    {name}\n{''.join(map(_lines, records))}" for name, records in sorted(PRINTED.items()))
    inside = "".join(f"    {name}\n{''.join(map(_names, parts))}" for name, parts in sorted(PARTS.items()))
    objects = f"Fields that hold objects, or lists of objects:\n\n{inside}\n"
    return _SECTION.sub(lambda _: f"{_INTRODUCTION}{listed}\n{objects}", topic)


def _lines(kind: Record) -> str:
    if kind is ANY:
        return "      - a configuration, file or schema\n"
    return _item(name if name.strip("?") in kind.columns else f"({name})" for name in _marked(kind))


def _names(part: Record) -> str:
    return _item(_marked(part))


def _marked(kind: Record) -> list[str]:
    return [f"{name}?" if name in kind.optional else name for name in kind.fields]


def _item(names: Iterable[str]) -> str:
    return textwrap.fill(" ".join(names), _WIDTH, initial_indent="      - ", subsequent_indent="        ") + "\n"
