"""What `get` prints of several keys: those that were named in their order, then what the filters match."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Protocol

from kvctl.cli.app.session import Session
from kvctl.cli.keys.arguments import listed
from kvctl.cli.keys.entry_rows import Shape
from kvctl.cli.keys.entry_stream import show_entries
from kvctl.errors import KeyNotFound

if TYPE_CHECKING:
    from kvctl.kv.bucket import Bucket
    from kvctl.kv.entry import Entry
    from kvctl.kv.point_in_time.as_of import Past


class Reader(Protocol):
    """A bucket of now or then."""

    bucket: str
    when: str
    """Nothing, or ` as of revision 12`."""
    caveat: str | None
    """What may be missing all the same."""

    async def one(self, key: str) -> "Entry":
        """The living key. Raises KeyNotFound."""

    async def named(self, keys: Sequence[str]) -> list["Entry | None"]:
        """What the keys hold, None for those that do not live."""

    def matching(self, filters: Sequence[str]) -> AsyncGenerator[list["Entry"], None]:
        """The living keys that match."""


class Now(Reader):
    """A bucket as it is; `leader` for what is never stale, `literal` for foreign keys, `revision` of a single key."""

    when = ""
    caveat = None

    def __init__(self, bucket: "Bucket", *, revision: int | None, leader: bool, literal: bool) -> None:
        self.bucket = bucket.name
        self._source = bucket
        self._revision = revision
        self._leader = leader
        self._literal = literal

    async def one(self, key: str) -> "Entry":
        get = self._source.get_literal if self._literal else self._source.get
        return await get(key, revision=self._revision, leader=self._leader)

    async def named(self, keys: Sequence[str]) -> list["Entry | None"]:
        if not self._literal:
            return await self._source.get_many(keys, leader=self._leader)
        return [await self._if_there(key) for key in keys]

    def matching(self, filters: Sequence[str]) -> AsyncGenerator[list["Entry"], None]:
        return self._source.get_matching(*filters, leader=self._leader)

    async def _if_there(self, key: str) -> "Entry | None":
        try:
            return await self.one(key)
        except KeyNotFound:
            return None


class Then(Reader):
    """A bucket as it was."""

    def __init__(self, past: "Past", *, literal: bool) -> None:
        self.bucket = past.bucket
        self.when = f" as of {past.moment}"
        self.caveat = past.caveat
        self._past = past
        self._literal = literal

    async def one(self, key: str) -> "Entry":
        return await self._past.get(key, literal=self._literal)

    async def named(self, keys: Sequence[str]) -> list["Entry | None"]:
        return await self._past.get_many(keys, literal=self._literal)

    def matching(self, filters: Sequence[str]) -> AsyncGenerator[list["Entry"], None]:
        return self._past.entry_batches(*filters)


async def show_several(
    session: Session, reader: Reader, named: Sequence[str], filters: Sequence[str], shape: Shape
) -> None:
    """Print the records. Raises KeyNotFound, after the others are printed, for named keys that are missing."""
    missing: list[str] = []

    async def batches() -> AsyncGenerator[list["Entry"], None]:
        found = await reader.named(named) if named else []
        missing.extend(key for key, entry in zip(named, found, strict=True) if entry is None)
        there = [entry for entry in found if entry is not None]
        if filters:
            shown = set(named)
            async with aclosing(reader.matching(filters)) as matching:
                async for batch in matching:  # what the past no longer holds is said before the first of it
                    yield [*there, *(entry for entry in batch if entry.key not in shown)]
                    there = []
        yield there

    await show_entries(session, shape, batches(), empty="" if named else "No keys match")
    if missing:
        raise KeyNotFound(
            f"{listed(missing)} not in bucket `{reader.bucket}`{reader.when}",
            hint=f"`kvctl keys {reader.bucket}` lists those that are" if not reader.when else None,
        )
