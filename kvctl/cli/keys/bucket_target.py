"""Buckets as targets of key commands, and the choice of a target by the argument BUCKET."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from datetime import timedelta
from typing import Any, BinaryIO

import kvctl
from kvctl.cli.app.session import Session
from kvctl.cli.keys import ref_target, removal
from kvctl.cli.keys.arguments import check_writable, open_bucket, parse_revision
from kvctl.cli.keys.output import Shape, encode, revision_view, show_entries, warn_of_other_life, warn_of_return
from kvctl.cli.keys.target import Fact, Reading, Target, TargetReader, TargetWriter
from kvctl.cli.records import KEY
from kvctl.errors import KeyNotFound
from kvctl.kv.bulk import bulk_writer, dumper, input_file, loader
from kvctl.kv.names import check_bucket, is_ref
from kvctl.kv.read import as_of as past_buckets
from kvctl.render.fields import columns
from kvctl.render.view import Row, View
from kvctl.units import format_time


class BucketTarget(Target):
    """A bucket, mirror or aggregate."""

    resumable = True

    def refuse(self, **given: object) -> None:
        """Accept everything: these options are for buckets."""

    def check_writable(self, session: Session, *, dry_run: bool = False) -> None:
        check_bucket(self.text) if dry_run else check_writable(session, self.text)

    def check_expected(self, text: str) -> None:
        parse_revision(text)

    async def reader(self, session: Session, reading: Reading | None = None) -> TargetReader:
        reading = reading or Reading(Shape())
        bucket = await open_bucket(session, self.text)
        if reading.as_of is None:
            return CurrentReader(bucket, reading)
        return AsOfReader(bucket, await bucket.as_of(reading.as_of), reading)

    async def writer(self, session: Session) -> TargetWriter:
        return BucketWriter(session, await open_bucket(session, self.text, write=True))

    async def delete(self, session: Session, chosen: "removal.KeyChoice", expected: str | None) -> None:
        last = None if expected is None else parse_revision(expected)
        await removal.remove(session, self.text, removal.deletion(chosen, last), chosen)

    async def dumping(
        self, session: Session, filters: Sequence[str], *, history: bool, as_of: "kvctl.Moment | None"
    ) -> Callable[[BinaryIO], Awaitable["dumper.DumpSummary"]]:
        source = await open_bucket(session, self.text)

        async def write(file: BinaryIO) -> "dumper.DumpSummary":
            with session.progress(f"Dumping {self.text}", unit="entries") as progress:
                if as_of is not None:
                    return await dumper.dump_past(source, as_of, file, filters, advance=progress.advance)
                return await dumper.dump(
                    source, file, filters, history=history, advance=progress.advance, expecting=progress.expect
                )

        return write

    async def load(
        self, session: Session, source: "input_file.LoadInput", options: "loader.LoadOptions"
    ) -> "bulk_writer.RowCounts":
        return await loader.load(await open_bucket(session, self.text, write=not options.dry_run), source, options)


class CurrentReader(TargetReader):
    """Current state: `leader` for reads that are never stale, `literal` for non-conforming keys, `revision` of one."""

    def __init__(self, bucket: "kvctl.Bucket", reading: Reading) -> None:
        self.place = f"bucket `{bucket.name}`"
        self.fields = {"bucket": bucket.name}
        self.listing: str | None = f"List the keys with `kvctl keys {bucket.name}`"
        self._bucket = bucket
        self._reading = reading
        self._source: kvctl.Bucket | past_buckets.Past = bucket

    async def one(self, key: str) -> "kvctl.Entry":
        get = self._bucket.get_literal if self._reading.literal else self._bucket.get
        return await get(key, revision=self._reading.revision, leader=self._reading.leader)

    async def named(self, keys: Sequence[str]) -> list["kvctl.Entry | None"]:
        if not self._reading.literal:
            return await self._bucket.get_many(keys, leader=self._reading.leader)
        return [await self._if_there(key) for key in keys]

    def matching(self, filters: Sequence[str]) -> AsyncGenerator[list["kvctl.Entry"], None]:
        return self._bucket.get_matching(*filters, leader=self._reading.leader)

    def names(self, filters: Sequence[str], *, deleted: bool) -> AsyncGenerator[list[bytes], None]:
        return self._source.key_batches(*filters, deleted=deleted)

    async def facts(self, filters: Sequence[str], *, deleted: bool) -> AsyncGenerator[list[Fact], None]:
        async with aclosing(self._source.entry_batches(*filters, deleted=deleted, values=False)) as batches:
            async for batch in batches:
                yield [(entry.key, entry.revision, entry.created_ns, str(entry.operation)) for entry in batch]

    async def fact_rows(self, facts: Sequence[Fact], *, deleted: bool) -> Sequence[Row]:
        rows: list[dict[str, Any]] = [
            {"key": key, "revision": revision, "created": format_time(created)} for key, revision, created, _ in facts
        ]
        if deleted:
            for row, fact in zip(rows, facts, strict=True):
                row["operation"] = fact[3]
        return rows

    def facts_view(self, *, deleted: bool) -> View:
        shown = columns(f"revision created {'operation' if deleted else ''} key", created="Age")
        return View(columns=shown, tsv=KEY.columns, name="key", empty="No keys")

    def history(
        self, filters: Sequence[str], since: "kvctl.Moment | None"
    ) -> AsyncGenerator[list["kvctl.Entry"], None]:
        return self._bucket.history_batches(*filters, since=since, literal=self._reading.literal and bool(filters))

    async def show(self, session: Session, batches: AsyncGenerator[list["kvctl.Entry"], None], *, empty: str) -> None:
        await show_entries(session, self._reading.shape, batches, empty=empty)

    async def show_history(self, session: Session, batches: AsyncGenerator[list["kvctl.Entry"], None]) -> None:
        await show_entries(session, self._reading.shape, batches, empty="No entries")

    async def show_one(self, session: Session, entry: "kvctl.Entry") -> None:
        shape: Shape = self._reading.shape
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


class AsOfReader(CurrentReader):
    """Earlier state."""

    def __init__(self, bucket: "kvctl.Bucket", past: "past_buckets.Past", reading: Reading) -> None:
        super().__init__(bucket, reading)
        self.place += f" as of {past.moment}"
        self.listing = None
        self.caveat = past.caveat
        self._source = self._past = past

    async def one(self, key: str) -> "kvctl.Entry":
        return await self._past.get(key, literal=self._reading.literal)

    async def named(self, keys: Sequence[str]) -> list["kvctl.Entry | None"]:
        return await self._past.get_many(keys, literal=self._reading.literal)

    def matching(self, filters: Sequence[str]) -> AsyncGenerator[list["kvctl.Entry"], None]:
        return self._past.entry_batches(*filters)


class BucketWriter(TargetWriter):
    """Writes of single keys of a bucket, with warnings about what becomes of a ttl."""

    def __init__(self, session: Session, bucket: "kvctl.Bucket") -> None:
        self._session = session
        self._bucket = bucket

    async def put(self, key: str, value: bytes, *, if_different: bool = False) -> Row:
        if if_different:
            entry = await self._bucket.last_entry(key, leader=True)
            if entry is not None and entry.operation == "PUT" and entry.value == value:
                self._session.note(f"`{key}` already has this value")
                return self._row(key, entry.revision)
        return self._row(key, await self._bucket.put(key, value))

    async def create(self, key: str, value: bytes, *, ttl: timedelta | None = None) -> Row:
        return self._row(key, await self._bucket.create(key, value, ttl=ttl))

    async def update(self, key: str, value: bytes, expected: str, *, ttl: timedelta | None = None) -> Row:
        return self._row(key, await self._bucket.update(key, value, parse_revision(expected), ttl=ttl))

    async def show(self, row: Row, *, ttl: timedelta | None = None, rewritten: bool = False) -> None:
        key = row["key"]
        self._session.show(revision_view(row["bucket"], key, row["revision"]))
        if ttl is not None:
            await warn_of_other_life(self._session, self._bucket, {key: ttl})
            if rewritten:
                await warn_of_return(self._session, self._bucket, [key])

    def _row(self, key: str, revision: int) -> Row:
        return {"bucket": self._bucket.name, "key": key, "revision": revision}


def parse_target(text: str) -> Target:
    """Return the target that an argument BUCKET names: NAME, or NAME@REF. Nothing is validated or sent yet."""
    if is_ref(text):
        return ref_target.RefTarget(text)
    return BucketTarget(text)
