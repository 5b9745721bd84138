"""`put`, `create`, `update` and `delete` on a branch of a repository, where they stage changes."""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kvctl.cli.app.session import Session
from kvctl.cli.keys.arguments import check_filters, check_keys, listed
from kvctl.cli.keys.at_ref.ref_rows import written_row
from kvctl.cli.repo.options import open_branch, parse_branch
from kvctl.errors import ConflictError, KeyExists, KeyNotFound, UsageError
from kvctl.phrases import counted, quoted
from kvctl.render.view import Column, Row, View

if TYPE_CHECKING:
    from kvctl.cli.repo.options import At
    from kvctl.versions.repository import Repository

TOGETHER = 1000
"""Number of deletions that are staged together."""
IDENTITY = re.compile(r"[0-9a-f]{40}\Z")


async def put(session: Session, place: str, key: str, value: bytes, *, if_different: bool) -> None:
    """Run `put NAME@BRANCH KEY VALUE`."""
    from kvctl.versions.branch import staged_revisions

    at = parse_branch(place)
    repository = await open_branch(session, at)
    (entry,) = await repository.get(at.ref, key) if if_different else [None]
    if entry is not None and entry.value == value:
        session.note(f"`{key}` already has this value")
        revisions = await staged_revisions.of_values(repository, at.ref, {key: value})
    else:
        revisions = staged_revisions.of_writes({key: await repository.put(at.ref, key, value)})
    _show(session, at, {key: value}, revisions, single=True)


async def create(session: Session, place: str, key: str, value: bytes) -> None:
    """Run `create NAME@BRANCH KEY VALUE`, if the key is neither staged nor committed."""
    from kvctl.versions.branch import staged_revisions
    from kvctl.versions.branch.compare_and_set import IdentityMismatch

    at = parse_branch(place)
    repository = await open_branch(session, at)
    try:
        made = await repository.write_if(at.ref, key, value, None)
    except IdentityMismatch as error:
        raise KeyExists(f"`{key}` exists at `{at}`", hint=f"It has identity {error.found}") from None
    _show(session, at, {key: value}, staged_revisions.of_writes({key: made}), single=True)


async def update(session: Session, place: str, key: str, value: bytes, expected: str) -> None:
    """Run `update NAME@BRANCH KEY VALUE REVISION`, where REVISION is an identity or a staged revision."""
    at, wanted = parse_branch(place), parse_expected(expected)
    repository = await open_branch(session, at)
    revisions = await _write_if(repository, at, key, value, wanted)
    _show(session, at, {key: value}, revisions, single=True)


async def delete(
    session: Session, place: str, texts: Sequence[str], filters: Sequence[str], expected: str | None,
    *, dry_run: bool, yes: bool, ignore_missing: bool,
) -> None:  # fmt: skip
    """Run `delete NAME@BRANCH KEY...`, or with `--match FILTER`."""
    at, named, chosen = parse_branch(place), check_keys(texts), check_filters(filters)
    wanted = None if expected is None else parse_expected(expected)
    if chosen and not (dry_run or session.interactive):
        await session.confirm(f"Delete keys from `{at}`?", yes=yes)  # before anything is sent
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
            await session.confirm(_question(at, found), yes=yes)
        await _delete(session, repository, at, found, wanted, single=single)
    elif not single:
        session.show(_written([], single=False, empty="No keys match" if chosen else ""))
    if missing and not ignore_missing:
        raise KeyNotFound(f"{listed(missing)} not in `{at}`", hint="Use `--ignore-missing` to ignore missing keys")


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


async def _delete(
    session: Session, repository: "Repository", at: "At", keys: Sequence[str], wanted: str | int | None, *, single: bool
) -> None:
    from kvctl.versions.branch import staged_revisions

    revisions: dict[str, int] = {}
    if wanted is not None:
        revisions = await _write_if(repository, at, keys[0], None, wanted)
    else:
        for start in range(0, len(keys), TOGETHER):
            made = await repository.put_many(at.ref, dict.fromkeys(keys[start : start + TOGETHER]))
            revisions |= staged_revisions.of_writes(made)
    _show(session, at, dict.fromkeys(keys), revisions, single=single)


async def _write_if(
    repository: "Repository", at: "At", key: str, value: bytes | None, wanted: str | int | None
) -> dict[str, int]:
    """Stage a value if the key has this identity or staged revision; return the new one. Raises ConflictError."""
    from kvctl.versions.branch import staged_revisions
    from kvctl.versions.branch.compare_and_set import StagedMismatch
    from kvctl.versions.store.store_subjects import revision_of

    if not isinstance(wanted, int):
        return staged_revisions.of_writes({key: await repository.write_if(at.ref, key, value, wanted)})
    try:
        made = await repository.write_if_staged(at.ref, key, value, lambda staged: revision_of(staged) == wanted)
    except StagedMismatch as error:
        standing = "it does not exist"
        if error.identity is not None:
            where = f"it is staged at revision {revision_of(error.staged)}" if error.staged else "it is committed"
            standing = f"{where}, with identity {error.identity}"
        raise ConflictError(f"`{key}` on `{at.ref}` is not staged at revision {wanted}: {standing}") from None
    return staged_revisions.of_writes({key: made})


def _question(at: "At", keys: Sequence[str]) -> str:
    shown = quoted(keys[:3])
    what = f"key {shown}" if len(keys) == 1 else f"{len(keys)} keys ({shown}{', …' if len(keys) > 3 else ''})"
    return f"Delete {what} from `{at}`?"


def _show_plan(session: Session, at: "At", keys: Sequence[str]) -> None:
    rows = [{"bucket": at.repository, "ref": at.ref, "key": key} for key in keys]
    columns = [Column(name, tsv=False, table=False) for name in ("bucket", "ref")]
    session.show(View(columns=[*columns, Column("key")], rows=rows, name="key", light=True))
    session.note(f"{counted(len(keys), 'key')} would be deleted")


def _show(
    session: Session, at: "At", written: Mapping[str, bytes | None], revisions: Mapping[str, int], *, single: bool
) -> None:
    """Show the revisions of staged changes, in a pipe one per line."""
    from kvctl.versions.tree.chunks import object_id

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
    return View(columns=columns, rows=rows, single=single, name="key", empty=empty, light=True)
