"""Refs of repositories, NAME@REF, as targets of key commands."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from datetime import timedelta
from typing import BinaryIO

import kvctl
from kvctl.cli.app.session import Session
from kvctl.cli.keys import removal
from kvctl.cli.keys.target import ref_stage
from kvctl.cli.keys.target.interface import Fact, Reader, Reading, Target, Writer
from kvctl.cli.keys.target.ref_rows import entries_view, entry_row, refuse, version_row, versions_view
from kvctl.cli.records import KEY_AT_REF
from kvctl.cli.repo.options import At, open_branch, open_repository, parse_at, parse_branch
from kvctl.errors import KeyNotFound
from kvctl.jetstream import api as jetstream_api
from kvctl.jetstream import streams
from kvctl.kv.bulk import bulk_writer, dumper, input_file, loader
from kvctl.render.fields import columns, short
from kvctl.render.view import Column, Row, View
from kvctl.versions import history as commit_history
from kvctl.versions import model, repositories
from kvctl.versions.transfer import ref_files


class RefTarget(Target):
    """A ref of a repository: a branch with its staged changes, a tag or a commit. Only branches take writes."""

    resumable = False

    def refuse(self, **given: object) -> None:
        refuse(self.text, **given)

    def check_writable(self, session: Session, *, dry_run: bool = False) -> None:
        parse_branch(self.text)
        if not dry_run:
            session.context.require_writable()

    def check_expected(self, text: str) -> None:
        ref_stage.parse_expected(text)

    async def reader(self, session: Session, reading: Reading | None = None) -> Reader:
        at = parse_at(self.text)
        encoding = None if reading is None else reading.shape.encoding
        repository = await open_repository(session, at.repository)
        return RefReader(repository, at, encoding, (await session.client()).api)

    async def writer(self, session: Session) -> Writer:
        at = parse_branch(self.text)
        return BranchWriter(session, await open_branch(session, at), at)

    async def delete(self, session: Session, chosen: "removal.Choice", expected: str | None) -> None:
        await ref_stage.delete(session, parse_branch(self.text), chosen, expected)

    async def dumping(
        self, session: Session, filters: Sequence[str], *, history: bool, as_of: "kvctl.Moment | None"
    ) -> Callable[[BinaryIO], Awaitable["dumper.Dumped"]]:
        at = parse_at(self.text)
        found, repository = await repositories.opened((await session.client()).api, at.repository)

        async def write(file: BinaryIO) -> "dumper.Dumped":
            with session.progress(f"Dumping {at}", unit="entries") as progress:
                return await ref_files.dump(
                    repository, at.repository, found.info["config"], at.ref, file, filters, advance=progress.advance
                )

        return write

    async def load(
        self, session: Session, source: "input_file.LoadInput", options: "loader.LoadOptions"
    ) -> "bulk_writer.RowCounts":
        at = parse_branch(self.text)
        repository = await open_branch(session, at, write=not options.dry_run)
        return await ref_files.load(repository, at.ref, source, options)


class RefReader(Reader):
    """State at a ref; listings are in byte order."""

    def __init__(self, repository: "kvctl.Repository", at: At, encoding: str | None, api: "jetstream_api.Api") -> None:
        self.place = f"`{at}`"
        self.fields = {"bucket": at.repository, "ref": at.ref}
        self.listing = f"List the keys with `kvctl keys {at}`"
        self._repository = repository
        self._at = at
        self._encoding = encoding
        self._api = api

    async def one(self, key: str) -> "model.VersionedEntry":
        (entry,) = await self._repository.get(self._at.ref, key)
        if entry is None:
            raise KeyNotFound(f"Key `{key}` is not in {self.place}", hint=self.listing)
        return entry

    async def named(self, keys: Sequence[str]) -> list["model.VersionedEntry | None"]:
        return await self._repository.get(self._at.ref, *keys)

    def matching(self, filters: Sequence[str]) -> AsyncGenerator[list["model.VersionedEntry"], None]:
        return self._repository.entry_batches(self._at.ref, *filters)

    async def names(self, filters: Sequence[str], *, deleted: bool) -> AsyncGenerator[list[bytes], None]:
        async with aclosing(self._repository.entry_batches(self._at.ref, *filters, values=False)) as batches:
            async for batch in batches:
                yield [entry.key.encode() for entry in batch]

    async def facts(self, filters: Sequence[str], *, deleted: bool) -> AsyncGenerator[list[Fact], None]:
        async with aclosing(self.matching(filters)) as batches:
            async for batch in batches:
                yield [(entry.key, entry) for entry in batch]

    async def fact_rows(self, facts: Sequence[Fact], *, deleted: bool) -> Sequence[Row]:
        described = [entry_row(self._at, entry, "base64") for _, entry in facts]
        fields = ("key", "revision", "identity")
        return [{name: row[name] for name in fields if name in row} for row in described]

    def facts_view(self, *, deleted: bool) -> View:
        shown = columns("revision identity key", revision="Staged", identity=Column("identity", text=short))
        return View(columns=shown, tsv=KEY_AT_REF.columns, name="key", empty="No keys")

    async def history(
        self, filters: Sequence[str], since: "kvctl.Moment | None"
    ) -> AsyncGenerator[list["commit_history.KeyVersion"], None]:
        first_ns = 0 if since is None else await self._time_of(since)
        async for versions in self._repository.key_history(self._at.ref, filters):
            yield [one for one in versions if one.commit is None or one.commit.created_ns >= first_ns]

    async def show(
        self, session: Session, batches: AsyncGenerator[list["model.VersionedEntry"], None], *, empty: str
    ) -> None:
        async def rows() -> AsyncGenerator[Sequence[Row], None]:
            async with aclosing(batches):
                async for batch in batches:
                    yield [entry_row(self._at, entry, self._encoding) for entry in batch]

        await session.stream(entries_view(empty=empty), rows())

    async def show_history(
        self, session: Session, batches: AsyncGenerator[list["commit_history.KeyVersion"], None]
    ) -> None:
        async def rows() -> AsyncGenerator[Sequence[Row], None]:
            async with aclosing(batches):
                async for versions in batches:
                    yield [version_row(self._at, version, self._encoding) for version in versions]

        await session.stream(versions_view(empty="No entries"), rows())

    async def show_one(self, session: Session, entry: "model.VersionedEntry") -> None:
        row = entry_row(self._at, entry, self._encoding)
        if session.options.output is not None:
            session.show(entries_view([row], single=True))
        elif self._encoding == "base64":
            session.value(f"{row['value']}\n".encode())
        else:
            session.value(entry.value)

    async def _time_of(self, since: "kvctl.Moment") -> int:
        moment = since.at((await streams.ServerClock.of_connection(self._api)).now_ns())
        assert moment.time_ns is not None
        return moment.time_ns


class BranchWriter(Writer):
    """Writes of single keys of a branch, where they are staged."""

    def __init__(self, session: Session, repository: "kvctl.Repository", at: At) -> None:
        self._session = session
        self._repository = repository
        self._at = at

    async def put(self, key: str, value: bytes, *, if_different: bool = False) -> Row:
        (entry,) = await self._repository.get(self._at.ref, key) if if_different else [None]
        if entry is not None and entry.value == value:
            self._session.note(f"`{key}` already has this value")
            revision = entry.revision
        else:
            revision = await self._repository.put(self._at.ref, key, value)
        return ref_stage.row(self._at, key, value, revision)

    async def create(self, key: str, value: bytes, *, ttl: timedelta | None = None) -> Row:
        return ref_stage.row(self._at, key, value, await ref_stage.create(self._repository, self._at, key, value))

    async def update(self, key: str, value: bytes, expected: str, *, ttl: timedelta | None = None) -> Row:
        wanted = ref_stage.parse_expected(expected)
        return ref_stage.row(
            self._at, key, value, await ref_stage.write_if(self._repository, self._at, key, value, wanted)
        )

    async def show(self, row: Row, *, ttl: timedelta | None = None, rewritten: bool = False) -> None:
        ref_stage.show_one(self._session, row, f"Staged `{row['key']}` on `{self._at.ref}`")
