"""Conditional writes and deletions on a branch of a repository, where they are staged."""

import re
from collections.abc import Sequence

import kvctl
from kvctl.cli.app.session import Session
from kvctl.cli.keys.arguments import check_filters, check_keys, listed
from kvctl.cli.keys.removal import Choice, question, show_plan
from kvctl.cli.keys.target.ref_rows import written_row, written_view
from kvctl.cli.repo.options import At, open_branch
from kvctl.errors import ConflictError, KeyExists, KeyNotFound, UsageError
from kvctl.render.view import Row
from kvctl.versions.branch import staging
from kvctl.versions.tree import chunks

TOGETHER = 1000
"""Number of deletions that are staged together."""
IDENTITY = re.compile(r"[0-9a-f]{40}\Z")


async def create(repository: "kvctl.Repository", at: "At", key: str, value: bytes) -> int:
    """Stage a key that is neither staged nor committed, and return its revision. Raises KeyExists."""
    try:
        return await repository.write_if(at.ref, key, value, None)
    except staging.IdentityMismatch as error:
        raise KeyExists(f"`{key}` exists at `{at}`", hint=f"It has identity {error.found}") from None


async def delete(session: Session, at: "At", choice: Choice, expected: str | None) -> None:
    """Stage the deletion of the chosen keys, and print the revisions. Raises KeyNotFound, ConflictError."""
    named, filters = check_keys(choice.keys), check_filters(choice.filters)
    wanted = None if expected is None else parse_expected(expected)
    if filters and not (choice.dry_run or session.interactive):
        await session.confirm(f"Delete keys from `{at}`?", yes=choice.yes)  # before anything is sent
    repository = await open_branch(session, at, write=not choice.dry_run)
    if filters:
        batches = repository.entry_batches(at.ref, *filters, values=False)
        found, missing = [entry.key async for batch in batches for entry in batch], []
    else:
        there = await repository.get(at.ref, *named)
        found = [entry.key for entry in there if entry is not None]
        missing = [key for key, entry in zip(named, there, strict=True) if entry is None]
    single = len(named) == 1
    if choice.dry_run:
        show_plan(session, {"bucket": at.repository, "ref": at.ref}, found, "deleted")
    elif found:
        if filters:
            await session.confirm(question("Delete", found, f"`{at}`"), yes=choice.yes)
        await _delete(session, repository, at, found, wanted, single=single)
    elif not single:
        session.show(written_view([], single=False, empty="No keys match" if filters else ""))
    if missing and not choice.ignore_missing:
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
    session: Session,
    repository: "kvctl.Repository",
    at: "At",
    keys: Sequence[str],
    wanted: str | int | None,
    *,
    single: bool,
) -> None:
    revisions: dict[str, int] = {}
    if wanted is not None:
        revisions[keys[0]] = await write_if(repository, at, keys[0], None, wanted)
    else:
        for start in range(0, len(keys), TOGETHER):
            revisions |= await repository.put_many(at.ref, dict.fromkeys(keys[start : start + TOGETHER]))
    rows = [row(at, key, None, revisions[key]) for key in keys]
    if single:
        show_one(session, rows[0], f"Staged the deletion of `{keys[0]}` on `{at.ref}`")
    else:
        session.show(written_view(rows, single=False))


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
    return written_row(at, key, revision, None if value is None else chunks.object_id(value).hex())
