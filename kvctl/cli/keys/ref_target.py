"""Refs of repositories, NAME@REF, as targets of key commands: reads, and writes that are staged on a branch."""

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from datetime import timedelta
from typing import Any, BinaryIO

import kvctl
from kvctl.cli.app.session import Session
from kvctl.cli.keys.arguments import Fact, Reading, listed
from kvctl.cli.records import ENTRY_AT_REF, KEY_AT_REF, WRITE_AT_REF
from kvctl.cli.repo.options import At, open_branch, open_repository, parse_at, parse_branch
from kvctl.errors import ConflictError, KeyExists, KeyNotFound, UsageError
from kvctl.jetstream import api as jetstream_api
from kvctl.jetstream import streams
from kvctl.kv.bulk import bulk_writer, dump_file, input_file, loader
from kvctl.render.escapes import text_of
from kvctl.render.fields import columns, short
from kvctl.render.view import Column, Row, View
from kvctl.units import format_time
from kvctl.versions import history as commit_history
from kvctl.versions import model, repositories
from kvctl.versions.branch import staging
from kvctl.versions.transfer import ref_files
from kvctl.versions.tree import chunks


class RefTarget:
    """A ref of a repository: a branch with its staged changes, a tag or a commit. Only branches take writes."""

    resumable = False

    def __init__(self, text: str) -> None:
        self.text = text

    def refuse(self, **given: object) -> None:
        """Raise UsageError for options that apply only to buckets; None and False are not given."""
        for name, value in given.items():
            if value is not None and value is not False:
                raise UsageError(
                    f"`--{name.replace('_', '-')}` applies only to buckets, not to `{self.text}`",
                    hint=_WHY.get(name, "`kvctl help versions`"),
                )

    def check_writable(self, session: Session, *, dry_run: bool = False) -> None:
        """Raise UsageError for what is not a branch, ReadOnly unless it is a dry run."""
        parse_branch(self.text)
        if not dry_run:
            session.context.require_writable()

    def check_expected(self, text: str) -> None:
        """Raise UsageError for what is neither an identity nor a staged revision."""
        parse_expected(text)

    async def reader(self, session: Session, reading: Reading | None = None) -> "RefReader":
        """Open the ref for reading. Raises RepositoryNotFound."""
        at = parse_at(self.text)
        encoding = None if reading is None else reading.shape.encoding
        repository = await open_repository(session, at.repository)
        return RefReader(repository, at, encoding, (await session.client()).api)

    async def writer(self, session: Session) -> "BranchWriter":
        """Open the branch for writing. Raises ReadOnly, NotFoundError, UsageError for another ref."""
        at = parse_branch(self.text)
        return BranchWriter(session, await open_branch(session, at), at)

    async def dumping(
        self, session: Session, filters: Sequence[str], *, history: bool, as_of: "kvctl.Moment | None"
    ) -> Callable[[BinaryIO], Awaitable["dump_file.DumpSummary"]]:
        """Return a function that dumps matching keys to a file."""
        at = parse_at(self.text)
        found, repository = await repositories.opened((await session.client()).api, at.repository)

        async def write(file: BinaryIO) -> "dump_file.DumpSummary":
            with session.progress(f"Dumping {at}", unit="entries") as progress:
                return await ref_files.dump(
                    repository, at.repository, found.info["config"], at.ref, file, filters, advance=progress.advance
                )

        return write

    async def load(
        self, session: Session, source: "input_file.LoadInput", options: "loader.LoadOptions"
    ) -> "bulk_writer.RowCounts":
        """Stage the rows of an input."""
        at = parse_branch(self.text)
        repository = await open_branch(session, at, write=not options.dry_run)
        return await ref_files.load(repository, at.ref, source, options)


class RefReader:
    """State at a ref; listings are in byte order."""

    caveat = None

    def __init__(self, repository: "kvctl.Repository", at: At, encoding: str | None, api: "jetstream_api.Api") -> None:
        self.place = f"`{at}`"
        self.fields = {"bucket": at.repository, "ref": at.ref}
        self.listing = f"List the keys with `kvctl keys {at}`"
        self._repository = repository
        self._at = at
        self._encoding = encoding
        self._api = api

    async def one(self, key: str) -> "model.VersionedEntry":
        """Return the entry of a key. Raises KeyNotFound."""
        (entry,) = await self._repository.get(self._at.ref, key)
        if entry is None:
            raise self.absent([key])
        return entry

    def absent(self, keys: Sequence[str]) -> KeyNotFound:
        """Return the error for missing keys."""
        return KeyNotFound(f"{listed(keys)} not in {self.place}", hint=self.listing)

    async def named(self, keys: Sequence[str]) -> list["model.VersionedEntry | None"]:
        """Return the entries of keys, None for keys that do not exist."""
        return await self._repository.get(self._at.ref, *keys)

    def noticing_unindexed(self, session: Session) -> AbstractAsyncContextManager[None]:
        """Do nothing: a state is complete."""
        return nullcontext()

    def unsure(self, filters: Sequence[str]) -> bool:
        """Return False: a state is complete."""
        return False

    def matching(
        self, filters: Sequence[str], *, confirm: bool = False
    ) -> AsyncGenerator[list["model.VersionedEntry"], None]:
        """Yield the entries of matching keys, in batches."""
        return self._repository.entry_batches(self._at.ref, *filters)

    async def names(self, filters: Sequence[str], *, deleted: bool) -> AsyncGenerator[list[bytes], None]:
        """Yield the names of matching keys, in batches."""
        async with aclosing(self._repository.entry_batches(self._at.ref, *filters, values=False)) as batches:
            async for batch in batches:
                yield [entry.key.encode() for entry in batch]

    async def facts(self, filters: Sequence[str], *, deleted: bool) -> AsyncGenerator[list[Fact], None]:
        """Yield what a listing shows of matching keys, in batches."""
        async with aclosing(self.matching(filters)) as batches:
            async for batch in batches:
                yield [(entry.key, entry) for entry in batch]

    async def fact_rows(self, facts: Sequence[Fact], *, deleted: bool) -> Sequence[Row]:
        """Return the rows of such facts."""
        described = [entry_row(self._at, entry, "base64") for _, entry in facts]
        fields = ("key", "revision", "identity")
        return [{name: row[name] for name in fields if name in row} for row in described]

    def facts_view(self, *, deleted: bool) -> View:
        """Return a view of such rows."""
        shown = columns("revision identity key", revision="Staged", identity=Column("identity", text=short))
        return View(columns=shown, tsv=KEY_AT_REF.columns, name="key", empty="No keys")

    async def history(
        self, filters: Sequence[str], since: "kvctl.Moment | None"
    ) -> AsyncGenerator[list["commit_history.KeyVersion"], None]:
        """Yield every change of matching keys, committed at a time or later, oldest first, in batches."""
        first_ns = 0 if since is None else await self._time_of(since)
        async for versions in self._repository.key_history(self._at.ref, filters):
            yield [one for one in versions if one.commit is None or one.commit.created_ns >= first_ns]

    async def show(self, session: Session, batches: AsyncGenerator[list[Any], None], *, empty: str) -> None:
        """Print entries as they arrive."""
        await session.stream(entries_view(empty=empty), self._rows(batches, entry_row))

    async def show_history(self, session: Session, batches: AsyncGenerator[list[Any], None]) -> None:
        """Print changes of keys as they arrive."""
        await session.stream(versions_view(), self._rows(batches, version_row))

    async def _rows(
        self, batches: AsyncGenerator[list[Any], None], row_of: Callable[..., Row]
    ) -> AsyncGenerator[Sequence[Row], None]:
        async with aclosing(batches):
            async for batch in batches:
                yield [row_of(self._at, item, self._encoding) for item in batch]

    async def show_one(self, session: Session, entry: Any) -> None:
        """Print the bare value of an entry, or the entry if a format was requested."""
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


class BranchWriter:
    """Writes of single keys of a branch, where they are staged. Each returns the row of the new entry."""

    def __init__(self, session: Session, repository: "kvctl.Repository", at: At) -> None:
        self._session = session
        self._repository = repository
        self._at = at

    async def put(self, key: str, value: bytes, *, if_different: bool = False) -> Row:
        """Stage the value; with `if_different`, return the current row of a key that has it already."""
        (entry,) = await self._repository.get(self._at.ref, key) if if_different else [None]
        if entry is not None and entry.value == value:
            self._session.note(f"`{key}` already has this value")
            revision = entry.revision
        else:
            revision = await self._repository.put(self._at.ref, key, value)
        return row(self._at, key, value, revision)

    async def create(self, key: str, value: bytes, *, ttl: timedelta | None = None) -> Row:
        """Stage a key that is neither staged nor committed. Raises KeyExists."""
        try:
            revision = await self._repository.write_if(self._at.ref, key, value, None)
        except staging.IdentityMismatch as error:
            raise KeyExists(f"`{key}` exists at `{self._at}`", hint=f"It has identity {error.found}") from None
        return row(self._at, key, value, revision)

    async def update(self, key: str, value: bytes, expected: str, *, ttl: timedelta | None = None) -> Row:
        """Stage the value if the key is at the expected identity or revision. Raises ConflictError, UsageError."""
        wanted = parse_expected(expected)
        return row(self._at, key, value, await write_if(self._repository, self._at, key, value, wanted))

    async def show(self, row: Row, *, ttl: timedelta | None = None, rewritten: bool = False) -> None:
        """Print the row of a write."""
        show_one(self._session, row, f"Staged `{row['key']}` on `{self._at.ref}`")


IDENTITY = re.compile(r"[0-9a-f]{40}\Z")


def parse_expected(text: str) -> str | int | None:
    """Parse an identity, a staged revision, or `0` as None for a key that does not exist. Raises UsageError."""
    if IDENTITY.match(text):
        return text
    if text.isdecimal() and len(text) <= 19:
        return int(text) or None
    raise UsageError(
        f"`{text}` is neither an identity nor a revision",
        hint="`kvctl get NAME@BRANCH KEY -o json` shows both; only staged changes have a revision",
    )


async def write_if(
    repository: "kvctl.Repository", at: "At", key: str, value: bytes | None, wanted: str | int | None
) -> int:
    """Stage a value, or a deletion, if the key has this identity or staged revision; return the new revision.

    Raises ConflictError.
    """
    if not isinstance(wanted, int):
        return await repository.write_if(at.ref, key, value, wanted)
    try:
        return await repository.write_if_staged(at.ref, key, value, wanted)
    except staging.StagedMismatch as error:
        standing = "it does not exist"
        if error.identity is not None:
            where = f"it is staged at revision {error.staged}" if error.staged else "it is committed"
            standing = f"{where}, with identity {error.identity}"
        raise ConflictError(f"`{key}` on `{at.ref}` is not staged at revision {wanted}: {standing}") from None


def show_one(session: Session, row: Row, text: str) -> None:
    """Show one staged change: as a sentence on a terminal, its revision in a pipe."""
    if session.options.output is None and session.terminal.is_terminal:
        session.note(text, always=True)
    else:
        session.show(written_view([row], single=True))


def row(at: "At", key: str, value: bytes | None, revision: int | None) -> Row:
    """Return the row of a staged value or deletion."""
    identity = None if value is None else chunks.object_id(value).hex()
    return {"bucket": at.repository, "ref": at.ref, "key": key, "revision": revision, "identity": identity}


_WHY = {
    "ttl": "Entries of a repository do not expire",
    "headers": "Entries of a repository have no headers",
    "literal": "Repositories have no non-conforming keys",
    "revision": "Use a ref instead, as in `NAME@main~2`, `NAME@v1` or a commit's id",
    "as_of": "Use a ref instead, as in `NAME@main~2`, `NAME@v1` or a commit's id",
    "deleted": "`kvctl repo status` shows staged deletions, `kvctl history NAME@REF` committed ones",
    "history": "`kvctl history NAME@REF -o ndjson` writes the entries of all commits",
}


def entry_row(at: At, entry: "model.VersionedEntry", encoding: str | None = None) -> dict[str, Any]:
    """Return the row of an entry. Raises KvctlError for a forced `utf-8`."""
    row: dict[str, Any] = {"bucket": at.repository, "ref": at.ref, "key": entry.key}
    if entry.revision is not None:
        row["revision"] = entry.revision
    row["operation"] = "PUT"
    row["value"], row["encoding"] = text_of(entry.value, encoding)
    return row | {"identity": entry.identity}


def version_row(at: At, version: "commit_history.KeyVersion", encoding: str | None = None) -> dict[str, Any]:
    """Return the row of a key's change in one commit or in staging."""
    row: dict[str, Any] = {"bucket": at.repository, "ref": at.ref, "key": version.key}
    commit = version.commit
    if version.revision is not None:
        row["revision"] = version.revision
    if commit is not None:
        row["created"] = format_time(commit.created_ns)
    row["operation"] = "DEL" if version.value is None else "PUT"
    row["value"], row["encoding"] = text_of(version.value or b"", encoding)
    row["identity"] = version.identity
    if commit is not None:
        row |= {"commit": commit.id, "author": commit.author, "message": commit.message}
    return row


def written_view(rows: Sequence[Row], *, single: bool, empty: str = "") -> View:
    """Return a view of writes: only the revisions in a pipe."""
    shown = columns("revision" if single else "key revision")
    return View(columns=shown, tsv=WRITE_AT_REF.columns, rows=rows, single=single, name="key", empty=empty, light=True)


def entries_view(rows: Sequence[Row] = (), *, single: bool = False, empty: str = "") -> View:
    """Return a view of entries at a ref."""
    names = "key revision identity value" if single else "revision identity key value"
    staged, identity = "Staged revision" if single else "Staged", Column("identity", text=None if single else short)
    shown = columns(names, revision=staged, identity=identity)
    return View(columns=shown, tsv=ENTRY_AT_REF.columns, rows=rows, single=single, name="key", empty=empty)


def versions_view() -> View:
    """Return a view of the changes of keys, commit by commit."""
    shown = columns("commit created operation key value message")
    return View(columns=shown, tsv=ENTRY_AT_REF.columns, name="key", empty="No entries")
