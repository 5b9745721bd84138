"""What get, keys and history show at a ref of a repository."""

from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kvctl.cli.inputs import check_filters, listed, split_keys
from kvctl.cli.ref_entries import entries_view, entry_row, version_row, versions_view
from kvctl.cli.repo_options import open_repository, parse_at
from kvctl.cli.session import Session
from kvctl.cli.table_views import text_of
from kvctl.errors import KeyNotFound
from kvctl.render.view import Column, Row, View

if TYPE_CHECKING:
    from kvctl.cli.repo_options import At
    from kvctl.versions.model import VersionedEntry


async def get(session: Session, place: str, texts: Sequence[str], encoding: str | None) -> None:
    """`get NAME@REF KEY...`, as of a bucket."""
    from kvctl.versions import staged_revisions

    named, filters = split_keys(texts)
    at = parse_at(place)
    repository = await open_repository(session, at.repository)
    found = await repository.get(at.ref, *named)
    there = [entry for entry in found if entry is not None]
    if filters:
        matching = await repository.entries(at.ref, *filters)
        there += [entry for entry in matching if entry.key not in set(named)]
    revisions = await staged_revisions.of_entries(repository, at.ref, there)
    if filters or len(named) != 1:
        rows = [entry_row(at, entry, revisions, encoding) for entry in there]
        session.show(entries_view(rows, empty="" if named else "No keys match"))
    elif there:
        _show_one(session, at, there[0], revisions, encoding)
    _report_missing(at, [key for key, entry in zip(named, found, strict=True) if entry is None])


def _show_one(
    session: Session, at: "At", entry: "VersionedEntry", revisions: Mapping[str, int], encoding: str | None
) -> None:
    if session.options.output is not None:
        session.show(entries_view([entry_row(at, entry, revisions, encoding)], single=True))
    elif encoding == "base64":
        session.value(f"{text_of(entry.value, encoding)[0]}\n".encode())
    else:
        text_of(entry.value, encoding) if encoding else None  # not UTF-8 is an error where that was asked for
        session.value(entry.value)


def _report_missing(at: "At", missing: list[str]) -> None:
    if missing:
        raise KeyNotFound(f"{listed(missing)} not in `{at}`", hint=f"`kvctl keys {at}` lists those that are")


async def keys(session: Session, place: str, texts: Sequence[str] | None, limit: int | None) -> None:
    """`keys NAME@REF [FILTER...]`: always in the order of their bytes."""
    from kvctl.versions import staged_revisions

    at, filters = parse_at(place), check_filters(texts)
    repository = await open_repository(session, at.repository)
    found = (await repository.entries(at.ref, *filters))[:limit]
    revisions = await staged_revisions.of_entries(repository, at.ref, found)
    rows: list[dict[str, Any]] = []
    for entry in found:
        revision = {"revision": revisions[entry.key]} if entry.key in revisions else {}
        rows.append({"key": entry.key, **revision, "identity": entry.identity})
    columns = [
        Column("key"),
        Column("revision", "STAGED", right=True, tsv=False),
        Column("identity", text=lambda identity: identity[:12], tsv=False),
    ]
    session.show(View(columns=columns, rows=rows, name="key", empty="No keys"))


async def history(
    session: Session, place: str, texts: Sequence[str] | None, limit: int | None, encoding: str | None
) -> None:
    """`history NAME@REF [FILTER...]`: an entry for each key of each commit that changed it, staged ones last."""
    from kvctl.versions.key_history import KeyVersion, key_history

    at, filters = parse_at(place), check_filters(texts)
    repository = await open_repository(session, at.repository)

    async def batches() -> AsyncIterator[Sequence[Row]]:
        newest: deque[KeyVersion] = deque(maxlen=limit)
        async for versions in key_history(repository, at.ref, filters):
            if limit is None:
                yield [version_row(at, version, encoding) for version in versions]
            else:
                newest.extend(versions)
        yield [version_row(at, version, encoding) for version in newest]

    await session.stream(versions_view(empty="No entries"), batches())
