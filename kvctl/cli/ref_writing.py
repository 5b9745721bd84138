"""What put, create, update and delete do on a branch of a repository: they stage."""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kvctl.cli.inputs import check_filters, check_keys, listed
from kvctl.cli.ref_entries import written_row
from kvctl.cli.repo_options import open_branch, parse_branch
from kvctl.cli.session import Session
from kvctl.errors import ConflictError, KeyExists, KeyNotFound, UsageError
from kvctl.render.view import Column, Row, View

if TYPE_CHECKING:
    from kvctl.cli.repo_options import At
    from kvctl.versions.repository import Repository

TOGETHER = 1000
"""Deletions that are staged at once."""
IDENTITY = re.compile(r"[0-9a-f]{40}\Z")


async def put(session: Session, place: str, key: str, value: bytes, *, if_different: bool) -> None:
    """`put NAME@BRANCH KEY VALUE`"""
    at = parse_branch(place)
    repository = await open_branch(session, at)
    (entry,) = await repository.get(at.ref, key) if if_different else [None]
    if entry is not None and entry.value == value:
        session.note(f"`{key}` has this value already")
    else:
        await repository.put(at.ref, key, value)
    await _show(session, repository, at, {key: value}, single=True)


async def create(session: Session, place: str, key: str, value: bytes) -> None:
    """`create NAME@BRANCH KEY VALUE`: neither staged nor committed may there be one."""
    from kvctl.versions.conditional import IdentityMismatch

    at = parse_branch(place)
    repository = await open_branch(session, at)
    try:
        await repository.write_if(at.ref, key, value, None)
    except IdentityMismatch as error:
        raise KeyExists(f"`{key}` exists at `{at}`", hint=f"It has identity {error.found}") from None
    await _show(session, repository, at, {key: value}, single=True)


async def update(session: Session, place: str, key: str, value: bytes, expected: str) -> None:
    """`update NAME@BRANCH KEY VALUE REVISION`: what it has now is known by its identity, or its staged revision."""
    at, wanted = parse_branch(place), parse_expected(expected)
    repository = await open_branch(session, at)
    await repository.write_if(at.ref, key, value, await _identity(repository, at, key, wanted))
    await _show(session, repository, at, {key: value}, single=True)


async def delete(
    session: Session, place: str, texts: Sequence[str], filters: Sequence[str], expected: str | None,
    *, dry_run: bool, yes: bool, ignore_missing: bool,
) -> None:  # fmt: skip
    """`delete NAME@BRANCH KEY...`, or `--match FILTER`."""
    at, named, chosen = parse_branch(place), check_keys(texts), check_filters(filters)
    wanted = None if expected is None else parse_expected(expected)
    if chosen and not (dry_run or session.interactive):
        session.confirm(f"Delete keys of `{at}`?", yes=yes)  # before anything is sent
    repository = await open_branch(session, at, write=not dry_run)
    if chosen:
        batches = repository.entry_batches(at.ref, *chosen, values=False)
        found, missing = [entry.key async for batch in batches for entry in batch], []
    else:
        there = await repository.get(at.ref, *named)
        found = [entry.key for entry in there if entry is not None]
        missing = [key for key, entry in zip(named, there, strict=True) if entry is None]
    single = len(named) == 1
    if dry_run:
        _show_plan(session, at, found)
    elif found:
        if chosen:
            session.confirm(_question(at, found), yes=yes)
        await _delete(session, repository, at, found, wanted, single=single)
    elif not single:
        session.show(_written([], single=False, empty="No keys match" if chosen else ""))
    if missing and not ignore_missing:
        raise KeyNotFound(f"{listed(missing)} not in `{at}`", hint="`--ignore-missing` lets that pass")


def parse_expected(text: str) -> str | int | None:
    """An identity, a staged revision, or None for `0`: there is no such key. Raises UsageError."""
    if IDENTITY.match(text):
        return text
    if text.isdecimal() and len(text) <= 19:
        return int(text) or None
    raise UsageError(
        f"`{text}` is neither an identity nor a revision",
        hint="`kvctl get NAME@BRANCH KEY -o json` shows both; a revision has what is staged alone",
    )


async def _delete(
    session: Session, repository: "Repository", at: "At", keys: Sequence[str], wanted: str | int | None, *, single: bool
) -> None:
    if wanted is not None:
        await repository.write_if(at.ref, keys[0], None, await _identity(repository, at, keys[0], wanted))
    else:
        for start in range(0, len(keys), TOGETHER):
            await repository.put_many(at.ref, dict.fromkeys(keys[start : start + TOGETHER]))
    await _show(session, repository, at, dict.fromkeys(keys), single=single)


async def _identity(repository: "Repository", at: "At", key: str, wanted: str | int | None) -> str | None:
    """The identity on which a write is conditioned. Raises ConflictError where the staged revision is another."""
    from kvctl.versions import staged_revisions

    if not isinstance(wanted, int):
        return wanted
    (entry,) = await repository.get(at.ref, key)
    revision = (await staged_revisions.of_entries(repository, at.ref, [entry])).get(key)
    if entry is not None and revision == wanted:
        return entry.identity
    standing = "there is no such key"
    if entry is not None:
        where = f"it is staged at revision {revision}" if revision else "it is committed"
        standing = f"{where}, with identity {entry.identity}"
    raise ConflictError(f"`{key}` on `{at.ref}` is not staged at revision {wanted}: {standing}")


def _question(at: "At", keys: Sequence[str]) -> str:
    shown = ", ".join(f"`{key}`" for key in keys[:3])
    what = f"key {shown}" if len(keys) == 1 else f"{len(keys)} keys ({shown}{', …' if len(keys) > 3 else ''})"
    return f"Delete {what} of `{at}`?"


def _show_plan(session: Session, at: "At", keys: Sequence[str]) -> None:
    rows = [{"bucket": at.repository, "ref": at.ref, "key": key} for key in keys]
    columns = [Column(name, tsv=False, table=False) for name in ("bucket", "ref")]
    session.show(View(columns=[*columns, Column("key")], rows=rows, name="key"))
    session.note(f"{len(keys)} {'key' if len(keys) == 1 else 'keys'} would be deleted")


async def _show(
    session: Session, repository: "Repository", at: "At", written: Mapping[str, bytes | None], *, single: bool
) -> None:
    """The revisions of what was staged: alone in a pipe, a line each; nothing where others were quicker since."""
    from kvctl.versions import staged_revisions
    from kvctl.versions.chunks import object_id

    revisions = await staged_revisions.of_values(repository, at.ref, written)
    rows = [
        written_row(at, key, revisions.get(key), None if value is None else object_id(value).hex())
        for key, value in written.items()
    ]
    session.show(_written(rows, single=single))


def _written(rows: Sequence[Row], *, single: bool, empty: str = "") -> View:
    columns = [
        *(Column(name, tsv=False, table=False) for name in ("bucket", "ref")),
        Column("key", tsv=False, table=not single),
        Column("revision", right=not single),
        Column("identity", tsv=False, table=False),
    ]
    return View(columns=columns, rows=rows, single=single, name="key", empty=empty)
