"""`get`, `keys` and `history` at a ref of a repository."""

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from kvctl.cli.app.session import Session
from kvctl.cli.keys.arguments import check_filters, listed, split_keys
from kvctl.cli.keys.at_ref.ref_rows import (
    entries_view,
    entry_row,
    version_row,
    versions_view,
)
from kvctl.cli.repo.options import open_repository, parse_at
from kvctl.cli.repo.views import short
from kvctl.errors import KeyNotFound
from kvctl.render.view import Column, Row, View

if TYPE_CHECKING:
    from kvctl.cli.repo.options import At
    from kvctl.versions.key_history import KeyVersion
    from kvctl.versions.model import VersionedEntry
    from kvctl.versions.repository import Repository


async def get(session: Session, place: str, texts: Sequence[str], encoding: str | None) -> None:
    """Run `get NAME@REF KEY...`."""
    named, filters = split_keys(texts)
    at = parse_at(place)
    repository = await open_repository(session, at.repository)
    found = await repository.get(at.ref, *named)
    there = [entry for entry in found if entry is not None]
    if filters or len(named) != 1:
        rows = _rows(repository, at, _several(repository, at, there, named, filters), encoding)
        await session.stream(entries_view(empty="" if named else "No keys match"), rows)
    elif there:
        (row,) = await _described(repository, at, there, encoding)
        _show_one(session, there[0], row, encoding)
    missing = [key for key, entry in zip(named, found, strict=True) if entry is None]
    if missing:
        raise KeyNotFound(f"{listed(missing)} not in `{at}`", hint=f"List the keys with `kvctl keys {at}`")


async def _several(
    repository: "Repository", at: "At", there: list["VersionedEntry"], named: Sequence[str], filters: Sequence[str]
) -> AsyncGenerator[list["VersionedEntry"], None]:
    """Yield the named entries, then the matches of the filters."""
    yield there
    if not filters:
        return
    shown = set(named)
    async with aclosing(repository.entry_batches(at.ref, *filters)) as batches:
        async for batch in batches:
            yield [entry for entry in batch if entry.key not in shown]


async def _rows(
    repository: "Repository", at: "At", batches: AsyncGenerator[list["VersionedEntry"], None], encoding: str | None
) -> AsyncGenerator[Sequence[Row], None]:
    async with aclosing(batches):
        async for batch in batches:
            yield await _described(repository, at, batch, encoding)


async def _described(
    repository: "Repository", at: "At", entries: Sequence["VersionedEntry"], encoding: str | None
) -> list[dict[str, Any]]:
    from kvctl.versions.branch import staged_revisions

    revisions = await staged_revisions.of_entries(repository, at.ref, entries)
    return [entry_row(at, entry, revisions, encoding) for entry in entries]


def _show_one(session: Session, entry: "VersionedEntry", row: dict[str, Any], encoding: str | None) -> None:
    """Show the bare value, or the entry if a format was requested."""
    if session.options.output is not None:
        session.show(entries_view([row], single=True))
    elif encoding == "base64":
        session.value(f"{row['value']}\n".encode())
    else:
        session.value(entry.value)


async def keys(session: Session, place: str, texts: Sequence[str] | None, limit: int | None) -> None:
    """Run `keys NAME@REF [FILTER...]`, always in byte order."""
    at, filters = parse_at(place), check_filters(texts)
    repository = await open_repository(session, at.repository)
    names = session.output == "name" or (session.output == "tsv" and not session.options.columns)
    columns = [
        Column("revision", "STAGED", right=True, tsv=False),
        Column("identity", text=short, tsv=False),
        Column("key"),
    ]

    async def rows() -> AsyncGenerator[Sequence[Row], None]:
        left = limit
        async with aclosing(repository.entry_batches(at.ref, *filters, values=not names)) as batches:
            async for batch in batches:
                some = batch[:left]
                yield [{"key": entry.key} for entry in some] if names else await _key_rows(repository, at, some)
                left = None if left is None else left - len(some)
                if left == 0:
                    return

    await session.stream(View(columns=columns, name="key", empty="No keys"), rows())


async def _key_rows(repository: "Repository", at: "At", entries: Sequence["VersionedEntry"]) -> list[dict[str, Any]]:
    fields = ("key", "revision", "identity")
    described = await _described(repository, at, entries, "base64")
    return [{name: row[name] for name in fields if name in row} for row in described]


async def history(
    session: Session, place: str, texts: Sequence[str] | None, limit: int | None, encoding: str | None
) -> None:
    """Run `history NAME@REF [FILTER...]`: an entry per key and commit that changed it, staged changes last."""
    from kvctl.versions.key_history import key_history

    at, filters = parse_at(place), check_filters(texts)
    repository = await open_repository(session, at.repository)

    async def batches() -> AsyncIterator[Sequence[Row]]:
        newest: deque[KeyVersion] = deque(maxlen=limit)
        async for versions in key_history(repository, at.ref, filters):
            if limit is None:
                yield await _version_rows(repository, at, versions, encoding)
            else:
                newest.extend(versions)
        yield await _version_rows(repository, at, newest, encoding)

    await session.stream(versions_view(empty="No entries"), batches())


async def _version_rows(
    repository: "Repository", at: "At", versions: Collection["KeyVersion"], encoding: str | None
) -> list[Row]:
    from kvctl.versions.branch import staged_revisions

    staged = {version.key: version.value for version in versions if version.commit is None}
    revisions = await staged_revisions.at_ref(repository, at.ref, staged)
    return [version_row(at, version, revisions, encoding) for version in versions]
