"""Configuration of a table, and its streams. [pure]

A table is the stream `KVT_<name>`, whose entries are below `$KVT.<name>.<life>.`, separate from subjects of buckets and
from handles on an earlier instance of the table, whose `life` differs. With partition streams it holds only the
configuration, and partition 3 is `KVTP_<name>_0003`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from kvctl.deferred import pattern
from kvctl.errors import UsageError
from kvctl.kv.config import BucketConfig, StreamConfig, edited
from kvctl.kv.names import BUCKET_PATTERN
from kvctl.kv.settings import FIELDS, settings_of
from kvctl.kv.stream_kind import KIND
from kvctl.tables.changes import base36
from kvctl.tables.keys import MAX_PARTITIONS, MAX_TABLE

TABLE = "table"
"""Value of the metadata mark of a table's streams."""
STREAM_PREFIX, PARTITION_PREFIX = "KVT_", "KVTP_"
SUBJECT_PREFIX = "$KVT."
PARTITIONS = "kvctl.table.partitions"
APART = "kvctl.table.partition-streams"
MAX_STREAMS = 256
"""Maximum number of partitions with separate streams."""
SETTINGS = settings_of("table")
"""Fields of a bucket that a table has too; history is 1, batches and marker TTLs are always on."""

_HEAD = "head"
_NAME = pattern(rf"{BUCKET_PATTERN}\Z")


@dataclass(frozen=True, slots=True)
class TableConfig:
    """A table: name, partitions and the settings of its streams."""

    name: str
    _: KW_ONLY
    partitions: int = 16
    """Number of partitions, which never changes."""
    apart: bool = False
    """True if every partition is a separate stream."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Fields of BucketConfig (SETTINGS)."""

    def __post_init__(self) -> None:
        check_table(self.name)
        most = MAX_STREAMS if self.apart else MAX_PARTITIONS
        if not 1 <= self.partitions <= most:
            raise UsageError(f"A table has 1 to {most:,} partitions, not {self.partitions:,}")
        if unknown := [name for name in self.settings if name not in SETTINGS]:
            raise UsageError(f"`{unknown[0]}` is not a setting of a table")

    def head(self, life: int) -> StreamConfig:
        """Return the table's own stream; `life` is its first sequence."""
        subject = f"{life_prefix(self.name, life)}{_HEAD if self.apart else '>'}"
        return self._stream(stream_name(self.name), subject, life)

    def streams(self, life: int) -> list[StreamConfig]:
        """Return the partition streams; none if partitions share the table's own stream."""
        prefix = life_prefix(self.name, life)
        return [
            self._stream(partition_stream(self.name, number), f"{prefix}{number:04x}.>", life)
            for number in (range(self.partitions) if self.apart else ())
        ]

    @classmethod
    def from_stream(cls, stream: StreamConfig) -> TableConfig:
        """Return the table of a stream, which must be one."""
        metadata = stream["metadata"]
        bucket = BucketConfig.from_stream(stream)
        return cls(
            stream["name"].removeprefix(STREAM_PREFIX),
            partitions=int(metadata[PARTITIONS]),
            apart=APART in metadata,
            settings={name: value for name in SETTINGS if (value := getattr(bucket, name)) != FIELDS[name]},
        )

    def _stream(self, name: str, subject: str, life: int) -> StreamConfig:
        marks = {KIND: TABLE, PARTITIONS: str(self.partitions), **({APART: "yes"} if self.apart else {})}
        stream = BucketConfig(self.name, atomic=True).to_stream()
        stream |= {"name": name, "subjects": [subject], "first_seq": life, "allow_msg_ttl": True, "metadata": marks}
        return edited(stream, self.settings)


def check_table(name: str) -> str:
    """Return the name. Raises UsageError."""
    if not _NAME.match(name):
        what = f"`{name}` is not a table name" if name else "The table name is empty"
        raise UsageError(what, hint="Use `A-Z a-z 0-9 _ -`")
    if len(name) > MAX_TABLE:
        raise UsageError(f"The table name has {len(name)} characters, the maximum is {MAX_TABLE}")
    return name


def is_table(stream: StreamConfig) -> bool:
    """Return whether the stream is a table, not one of its partitions."""
    metadata = stream.get("metadata") or {}
    numbered = re.fullmatch("[1-9][0-9]{0,8}", metadata.get(PARTITIONS) or "") is not None
    return stream["name"].startswith(STREAM_PREFIX) and metadata.get(KIND) == TABLE and numbered


def stream_name(table: str) -> str:
    """Return the name of a table's own stream."""
    return STREAM_PREFIX + table


def partition_stream(table: str, partition: int) -> str:
    """Return the name of a partition's separate stream."""
    return f"{PARTITION_PREFIX}{table}_{partition:04x}"


def subject_prefix(table: str) -> str:
    """Return the common prefix of the subjects of all instances of a table."""
    return f"{SUBJECT_PREFIX}{table}."


def life_prefix(table: str, life: int) -> str:
    """Return the prefix of the subjects of all entries."""
    return f"{subject_prefix(table)}{base36(life)}."
