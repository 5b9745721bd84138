"""Where the entries of a table are: streams, subjects, and stored messages as entries."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import TypeVar

from kvctl.errors import BucketNotFound, OutcomeUnknown, ServerError, TableNotFound, TableSealed, UsageError
from kvctl.jetstream.api import Api
from kvctl.kv.bucket import Bucket
from kvctl.kv.entry import Entry as StoredEntry
from kvctl.kv.entry import Operation
from kvctl.tables.catalog import Found
from kvctl.tables.changes import Change, Remove, Version, named
from kvctl.tables.config import partition_stream, stream_name, subject_prefix
from kvctl.tables.conflicts import unknown
from kvctl.tables.entry import Entry
from kvctl.tables.keys import check_key, partition_of, read_tail, tail
from kvctl.tables.ranges import Families, Range

_SEALED = 10109

T = TypeVar("T")

Name = tuple[str | None, bytes]
"""Family and key."""


class Layout:
    """The streams of a table as buckets, whose keys are the ends of the entries' subjects (`keys.tail`): places."""

    def __init__(self, api: Api, found: Found) -> None:
        self.config = found.config
        self.life = found.life
        self._api = api
        self._buckets: dict[int, Bucket] = {}

    def place(self, family: str | None, key: bytes) -> str:
        """Where an entry is. Raises UsageError."""
        check_key(family, key)
        return tail(partition_of(family, key, self.config.partitions), family, key)

    def check_values(self, changes: Iterable[Change]) -> None:
        """Raises UsageError for a value that no message has room for; of many changes it has to be said whose."""
        limit = self._api.connection.max_payload
        for change in changes:
            if not isinstance(change, Remove) and len(change.value) > limit:
                raise UsageError(
                    f"The value of {named(change.family, change.key)} is {len(change.value):,} bytes, "
                    f"the server takes {limit:,}",
                    hint="The limit is the server's `max_payload`; headers count",
                )

    def bucket(self, place: str) -> Bucket:
        """The handle on the stream that holds a place."""
        return self._bucket(_partition(place))

    def readings(self, of: Range) -> list[tuple[Bucket, str]]:
        """Where a range is, stream by stream, and the subjects to read there. Raises UsageError for a bad family."""
        prefix, count = subject_prefix(self.config.name), self.config.partitions
        if not isinstance(of.family, Families) and of.family is not None:
            check_key(of.family, b"\0")  # the shortest there is
            partition = partition_of(of.family, b"", count)
            return [(self._bucket(partition), f"{prefix}{partition:04x}.{of.tokens}")]
        if self.config.apart:
            return [(self._bucket(number), f"{prefix}{number:04x}.{of.tokens}") for number in range(count)]
        return [(self._bucket(0), f"{prefix}*.{of.tokens}")]

    def entry(self, place: str, stored: StoredEntry | None, name: Name | None = None) -> Entry | None:
        """What is stored there, as an entry; None for nothing, or the trace of a removal.

        `name` is what is there, where that is known. Raises ValueError for what no table stores.
        """
        if stored is None or stored.operation is not Operation.PUT:
            return None
        family, key = name or read_tail(place)[1:]
        return Entry(key, stored.value, self.version(place, stored.revision), family)

    def version(self, place: str, sequence: int) -> Version:
        """The version of what has this sequence."""
        return Version(self.life, _partition(place), sequence - self.life)

    def sequence(self, version: Version) -> int:
        """The sequence that a version stands for."""
        return version.life + version.number

    def ours(self, place: str, version: Version) -> bool:
        """Whether the version can be one of this place, in this life of the table."""
        return (version.life, version.partition) == (self.life, _partition(place))

    async def tell(self, work: Awaitable[T], place: str = "") -> T:
        """A bucket's answer, its errors in the words of tables."""
        try:
            return await work
        except BucketNotFound:
            raise TableNotFound(f"Table `{self.config.name}` does not exist any more") from None
        except ServerError as error:
            if error.err_code == _SEALED:
                raise TableSealed(f"Table `{self.config.name}` is sealed: it is read-only for ever") from None
            raise
        except OutcomeUnknown:
            _, family, key = read_tail(place)
            raise unknown(self.config.name, family, key) from None

    def _bucket(self, partition: int) -> Bucket:
        number = partition if self.config.apart else 0
        if number not in self._buckets:
            name = self.config.name
            stream = partition_stream(name, partition) if self.config.apart else stream_name(name)
            self._buckets[number] = Bucket(self._api, name, stream=stream, prefix=subject_prefix(name))
        return self._buckets[number]


def _partition(place: str) -> int:
    return int(place[:4], 16)
