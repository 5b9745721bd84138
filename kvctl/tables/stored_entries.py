"""Storage of a table's entries: streams, subjects, and stored messages as entries."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Iterable, Sequence
from functools import lru_cache
from typing import TypeVar

from kvctl.errors import BucketNotFound, OutcomeUnknown, ServerError, TableNotFound, TableSealed, UnreachableError
from kvctl.jetstream import streams
from kvctl.jetstream.api import STREAM_SEALED, Api
from kvctl.kv.bucket import Bucket
from kvctl.kv.entry import Entry as StoredEntry
from kvctl.kv.entry import Operation
from kvctl.tables.batch import KeySpace
from kvctl.tables.catalog import ExistingTable
from kvctl.tables.changes import Entry, TableEntry, Version, unknown
from kvctl.tables.config import partition_stream, stream_name
from kvctl.tables.keys import MAX_PARTITIONS, check_key, partition_of, read_tail, tail
from kvctl.tables.ranges import Families, Range
from kvctl.tokens import token

LIFE_CHECK_S = 1.0
"""Minimum seconds between checks that the table is still the opened instance, when entries are missing."""


T = TypeVar("T")


Name = tuple[str | None, bytes]
"""Family and key."""


class TableLayout:
    """The streams of a table as buckets, with the ends of the entries' subjects (`keys.tail`) as keys: places."""

    def __init__(self, api: Api, found: ExistingTable) -> None:
        self.config = found.config
        self.life = found.life
        self.prefix = found.prefix
        self._api = api
        self._buckets: dict[int, Bucket] = {}
        self._checked = time.monotonic()

    def place(self, family: str | None, key: bytes) -> str:
        """Return the place of an entry. Raises UsageError."""
        check_key(family, key)
        return tail(partition_of(family, key, self.config.partitions), family, key)

    @property
    def space(self) -> KeySpace:
        """Places of entries, for batches."""
        most = self._api.connection.max_payload
        prefix = self._api.write_prefix + self.prefix
        return KeySpace(prefix, self.life, self.config.partitions, self.config.apart, most)

    def bucket(self, place: str) -> Bucket:
        """Return the handle on the stream of a place."""
        return self._bucket(_partition(place))

    @property
    def buckets(self) -> list[Bucket]:
        """Handles on all streams with entries."""
        return [self._bucket(number) for number in (range(self.config.partitions) if self.config.apart else (0,))]

    def readings(self, of: Range) -> list[tuple[Bucket, str]]:
        """Return the streams of a range, and the subjects to read there. Raises UsageError for an invalid family."""
        prefix, count = self.prefix, self.config.partitions
        if not isinstance(of.family, Families) and of.family is not None:
            check_key(of.family, b"\0")  # the shortest key
            partition = partition_of(of.family, b"", count)
            return [(self._bucket(partition), f"{prefix}{partition:04x}.{of.tokens}")]
        if self.config.apart:
            return [(self._bucket(number), f"{prefix}{number:04x}.{of.tokens}") for number in range(count)]
        return [(self._bucket(0), f"{prefix}*.{of.tokens}")]

    def places(self, family: str | None, keys: Sequence[bytes]) -> list[str]:
        """Return the places of entries of one family. Raises UsageError."""
        if family is None or not keys:
            return [self.place(family, key) for key in keys]
        head = self.place(family, min(keys, key=len)).rpartition(".")[0] + "."
        self.place(family, max(keys, key=len))
        return [head + text.decode() for text in map(token, keys)]

    def entry(self, place: str, stored: StoredEntry | None) -> Entry | None:
        """Return a stored message as an entry; None if there is none, or if it marks a removal.

        Raises ValueError for a message that no table stores.
        """
        return self.entries([place], [stored])[0]

    def entries(
        self, places: Sequence[str], stored: Iterable[StoredEntry | None], names: Sequence[Name] = ()
    ) -> list[Entry | None]:
        """Return stored messages as entries, None for none and for removals; `names` are families and keys, if known.

        Raises ValueError for a message that no table stores.
        """
        life, make, put = self.life, tuple.__new__, Operation.PUT
        known = names or [read_tail(place)[1:] for place in places]
        return [
            make(TableEntry, (key, one.value, make(Version, (life, _partition(place), one.revision - life)), family))
            if one is not None and one.operation is put
            else None
            for place, one, (family, key) in zip(places, stored, known, strict=True)
        ]

    @property
    def written(self) -> int:
        """Highest sequence that this session has written."""
        return max((bucket.own.highest for bucket in self._buckets.values()), default=0)

    def version(self, place: str, sequence: int) -> Version:
        """Return the version of a sequence."""
        return Version(self.life, _partition(place), sequence - self.life)

    def sequence(self, version: Version) -> int:
        """Return the sequence of a version."""
        return version.life + version.number

    def ours(self, place: str, version: Version) -> bool:
        """Return whether the version can belong to this place, in this instance of the table."""
        return (version.life, version.partition) == (self.life, _partition(place))

    async def mapped(self, work: Awaitable[T], place: str = "") -> T:
        """Return a bucket's result, with its errors rewritten for tables."""
        try:
            return await work
        except BucketNotFound:
            raise self._replaced() from None
        except ServerError as error:
            if error.err_code == STREAM_SEALED:
                raise TableSealed(f"Table `{self.config.name}` is sealed: it is permanently read-only") from None
            error.hint = error.hint and error.hint.replace("`kvctl bucket edit ", "`kvctl table edit ")
            raise
        except UnreachableError:
            await self.check_life(now=True)
            raise
        except OutcomeUnknown:
            _, family, key = read_tail(place)
            raise unknown(self.config.name, family, key) from None

    async def check_life(self, *, now: bool = False) -> None:
        """Raise TableNotFound if the table was deleted or recreated since it was opened; checks once a second."""
        if not now and time.monotonic() < self._checked + LIFE_CHECK_S:
            return
        info = await streams.find(self._api, stream_name(self.config.name))
        if info is None or info["config"].get("first_seq") != self.life:
            raise self._replaced()
        self._checked = time.monotonic()

    def _replaced(self) -> TableNotFound:
        return TableNotFound(
            f"Table `{self.config.name}` was deleted since it was opened", hint="If it was recreated, open it again"
        )

    def _bucket(self, partition: int) -> Bucket:
        number = partition if self.config.apart else 0
        if number not in self._buckets:
            name = self.config.name
            stream = partition_stream(name, partition) if self.config.apart else stream_name(name)
            self._buckets[number] = Bucket(self._api, name, stream=stream, prefix=self.prefix)
        return self._buckets[number]


def _partition(place: str) -> int:
    return _number(place[:4])


@lru_cache(MAX_PARTITIONS)
def _number(digits: str) -> int:
    return int(digits, 16)
