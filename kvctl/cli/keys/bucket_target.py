"""Buckets as targets of key commands, and the choice of a target by the argument BUCKET.

A target is a bucket or a ref (`ref_target.py`), before anything was sent. Both kinds, their readers and their writers
have the same methods, so that commands need not tell them apart.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from datetime import timedelta
from typing import Any, BinaryIO, TypeAlias

import kvctl
from kvctl.cli.app.session import Session
from kvctl.cli.keys import ref_target
from kvctl.cli.keys.arguments import (
    Fact,
    Reading,
    check_writable,
    listed,
    noticing_unindexed,
    open_bucket,
    parse_revision,
)
from kvctl.cli.keys.output import (
    EXPIRES,
    Shape,
    encode,
    revision_view,
    show_entries,
    time_left,
    warn_of_other_life,
    warn_of_return,
)
from kvctl.cli.records import KEY
from kvctl.errors import KeyNotFound
from kvctl.kv.bulk import bulk_writer, dump_file, input_file, loader
from kvctl.kv.names import check_bucket, is_ref
from kvctl.kv.read import as_of as past_buckets
from kvctl.render.fields import columns
from kvctl.render.view import Row, View
from kvctl.units import format_time

Target: TypeAlias = "BucketTarget | ref_target.RefTarget"
TargetReader: TypeAlias = "BucketReader | ref_target.RefReader"


class BucketTarget:
    """A bucket, mirror or aggregate."""

    resumable = True
    """True if an interrupted load continues where it stopped."""

    def __init__(self, text: str) -> None:
        self.text = text

    def refuse(self, **given: object) -> None:
        """Accept everything: these options are for buckets."""

    def check_writable(self, session: Session, *, dry_run: bool = False) -> None:
        """Raise UsageError for a name that is not valid, ReadOnly unless it is a dry run."""
        check_bucket(self.text) if dry_run else check_writable(session, self.text)

    def check_expected(self, text: str) -> None:
        """Raise UsageError for what cannot be the expected revision of a key."""
        parse_revision(text)

    async def reader(self, session: Session, reading: Reading | None = None) -> "BucketReader":
        """Open the bucket for reading. Raises BucketNotFound."""
        reading = reading or Reading(Shape())
        bucket = await open_bucket(session, self.text)
        return BucketReader(bucket, reading, None if reading.as_of is None else await bucket.as_of(reading.as_of))

    async def writer(self, session: Session) -> "BucketWriter":
        """Open the bucket for writing. Raises ReadOnly, BucketNotFound."""
        return BucketWriter(session, await open_bucket(session, self.text, write=True))

    async def dumping(
        self, session: Session, filters: Sequence[str], *, history: bool, as_of: "kvctl.Moment | None"
    ) -> Callable[[BinaryIO], Awaitable["dump_file.DumpSummary"]]:
        """Return a function that dumps matching keys to a file."""
        source = await open_bucket(session, self.text)

        async def write(file: BinaryIO) -> "dump_file.DumpSummary":
            with session.progress(f"Dumping {self.text}", unit="entries") as progress:
                if as_of is not None:
                    return await dump_file.dump_past(source, as_of, file, filters, advance=progress.advance)
                return await dump_file.dump(
                    source, file, filters, history=history, advance=progress.advance, expecting=progress.expect
                )

        return write

    async def load(
        self, session: Session, source: "input_file.LoadInput", options: "loader.LoadOptions"
    ) -> "bulk_writer.RowCounts":
        """Write the rows of an input."""
        return await loader.load(await open_bucket(session, self.text, write=not options.dry_run), source, options)


class BucketReader:
    """State of a bucket, now or in the `past`; `Reading` says what is read of it."""

    def __init__(self, bucket: "kvctl.Bucket", reading: Reading, past: "past_buckets.Past | None") -> None:
        self.place = f"bucket `{bucket.name}`{f' as of {past.moment}' if past else ''}"
        """Name in messages: ``bucket `orders` ``, ``bucket `orders` as of revision 12``, `` `config@main` ``."""
        self.fields = {"bucket": bucket.name}
        """Fields that name the target in JSON."""
        self.listing = None if past else f"List the keys with `kvctl keys {bucket.name}`"
        """Hint for missing keys."""
        self._bucket = bucket
        self._reading = reading
        self._past = past

    @property
    def caveat(self) -> str | None:
        """Warning about what may be missing from the state that was read."""
        return self._past.caveat if self._past else None

    async def one(self, key: str) -> "kvctl.Entry":
        """Return the entry of a key. Raises KeyNotFound."""
        if self._past:
            return await self._past.get(key, literal=self._reading.literal)
        get = self._bucket.get_literal if self._reading.literal else self._bucket.get
        return await get(key, revision=self._reading.revision, leader=self._reading.leader)

    async def named(self, keys: Sequence[str]) -> list["kvctl.Entry | None"]:
        """Return the entries of keys, None for keys that do not exist."""
        if self._past:
            return await self._past.get_many(keys, literal=self._reading.literal)
        if not self._reading.literal:
            return await self._bucket.get_many(keys, leader=self._reading.leader)
        return [await self._if_there(key) for key in keys]

    def absent(self, keys: Sequence[str]) -> KeyNotFound:
        """Return the error for missing keys, which says if the leader did not confirm one of them."""
        confirmed = self._past is not None or self._bucket.unconfirmed.isdisjoint(keys)
        return KeyNotFound(f"{listed(keys)} not in {self.place}", hint=self.listing or self.caveat, confirmed=confirmed)

    def noticing_unindexed(self, session: Session) -> AbstractAsyncContextManager[None]:
        """Warn of keys that servers leave out of a reading of matching keys in the block."""
        return nullcontext() if self._past else noticing_unindexed(session, self._bucket.name)

    def unsure(self, filters: Sequence[str]) -> bool:
        """Return True if no leader confirmed what a reading of matching keys did not find."""
        return not self._bucket.unconfirmed.isdisjoint(filters or [">"])

    def matching(self, filters: Sequence[str], *, confirm: bool = False) -> AsyncGenerator[list["kvctl.Entry"], None]:
        """Yield the entries of matching keys, in batches; with `confirm`, not of a replica that is behind."""
        if self._past:
            return self._past.entry_batches(*filters)
        return self._bucket.get_matching(*filters, leader=self._reading.leader, confirm=confirm)

    def names(self, filters: Sequence[str], *, deleted: bool) -> AsyncGenerator[list[bytes], None]:
        """Yield the names of matching keys, in batches."""
        return (self._past or self._bucket).key_batches(*filters, deleted=deleted)

    async def facts(self, filters: Sequence[str], *, deleted: bool) -> AsyncGenerator[list[Fact], None]:
        """Yield what a listing shows of matching keys, in batches."""
        source = self._past or self._bucket
        async with aclosing(source.entry_batches(*filters, deleted=deleted, values=False)) as batches:
            async for batch in batches:
                left = time_left if self._reading.shape.table else lambda entry: None
                yield [
                    (entry.key, entry.revision, entry.created_ns, str(entry.operation), left(entry)) for entry in batch
                ]

    async def fact_rows(self, facts: Sequence[Fact], *, deleted: bool) -> Sequence[Row]:
        """Return the rows of such facts."""
        rows: list[dict[str, Any]] = [
            {"key": key, "revision": revision, "created": format_time(created)} for key, revision, created, *_ in facts
        ]
        if self._reading.shape.table:
            for row, fact in zip(rows, facts, strict=True):
                row["expires"] = fact[4]
        if deleted:
            for row, fact in zip(rows, facts, strict=True):
                row["operation"] = fact[3]
        return rows

    def facts_view(self, *, deleted: bool) -> View:
        """Return a view of such rows."""
        shown = columns(f"revision created {'operation' if deleted else ''} expires key", expires=EXPIRES)
        return View(columns=shown, tsv=KEY.columns, name="key", empty="No keys")

    def history(
        self, filters: Sequence[str], since: "kvctl.Moment | None"
    ) -> AsyncGenerator[list["kvctl.Entry"], None]:
        """Yield every change of matching keys, at a time or later, oldest first, in batches."""
        return self._bucket.history_batches(*filters, since=since, literal=self._reading.literal and bool(filters))

    async def show(self, session: Session, batches: AsyncGenerator[list[Any], None], *, empty: str) -> None:
        """Print entries as they arrive."""
        await show_entries(session, self._reading.shape, batches, empty=empty)

    async def show_history(self, session: Session, batches: AsyncGenerator[list[Any], None]) -> None:
        """Print changes of keys as they arrive."""
        await self.show(session, batches, empty="No entries")

    async def show_one(self, session: Session, entry: Any) -> None:
        """Print the bare value of an entry, or the entry if a format or headers were requested."""
        shape = self._reading.shape
        if session.options.output is not None or shape.headers:
            session.show(shape.document(entry))
        elif shape.encoding == "base64":
            session.value(f"{encode(entry, 'base64')[0]}\n".encode())
        else:
            encode(entry, shape.encoding)  # raises if UTF-8 was requested and the value is not
            session.value(entry.value)

    async def _if_there(self, key: str) -> "kvctl.Entry | None":
        try:
            return await self.one(key)
        except KeyNotFound:
            return None


class BucketWriter:
    """Writes of single keys of a bucket. Each returns the row of the new entry; `show` warns about its ttl."""

    def __init__(self, session: Session, bucket: "kvctl.Bucket") -> None:
        self._session = session
        self._bucket = bucket

    async def put(self, key: str, value: bytes, *, if_different: bool = False) -> Row:
        """Write the value; with `if_different`, return the current row of a key that has it already."""
        if if_different:
            entry = await self._bucket.last_entry(key, leader=True)
            if entry is not None and entry.operation == "PUT" and entry.value == value:
                self._session.note(f"`{key}` already has this value")
                return self._row(key, entry.revision)
        return self._row(key, await self._bucket.put(key, value))

    async def create(self, key: str, value: bytes, *, ttl: timedelta | None = None) -> Row:
        """Write a key that does not exist. Raises KeyExists."""
        return self._row(key, await self._bucket.create(key, value, ttl=ttl))

    async def update(self, key: str, value: bytes, expected: str, *, ttl: timedelta | None = None) -> Row:
        """Write the value if the key is at the expected revision. Raises ConflictError, UsageError."""
        return self._row(key, await self._bucket.update(key, value, parse_revision(expected), ttl=ttl))

    async def show(self, row: Row, *, ttl: timedelta | None = None, rewritten: bool = False) -> None:
        """Print the row of a write, then warn about its ttl; `rewritten` if the key may have had another value."""
        key = row["key"]
        self._session.show(revision_view(row["bucket"], key, row["revision"]))
        if ttl is not None:
            await warn_of_other_life(self._session, self._bucket, {key: ttl})
        if rewritten if ttl is not None else self._bucket.values_may_return:
            await warn_of_return(self._session, self._bucket, [key])

    def _row(self, key: str, revision: int) -> Row:
        return {"bucket": self._bucket.name, "key": key, "revision": revision}


def parse_target(text: str) -> Target:
    """Return the target that an argument BUCKET names: NAME, or NAME@REF. Nothing is validated or sent yet."""
    if is_ref(text):
        return ref_target.RefTarget(text)
    return BucketTarget(text)
