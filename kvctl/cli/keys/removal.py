"""`kvctl delete` and `purge`: removal of keys by name or by filter. Select, confirm, remove, report."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from datetime import timedelta
from typing import Annotated, NamedTuple

import kvctl
from kvctl.cli.app.command import command
from kvctl.cli.app.options import BucketName, DryRun, KeyedName, Yes, argument, duration, flag, key_names, option
from kvctl.cli.app.session import Session
from kvctl.cli.keys import ref_target
from kvctl.cli.keys.arguments import Literal, check_filters, check_keys, listed, open_bucket, parse_revision, revision
from kvctl.cli.keys.bucket_target import parse_target
from kvctl.cli.keys.output import writing_view
from kvctl.cli.records import REMOVAL_PLAN, REMOVAL_PLAN_AT_REF, WRITE, WRITE_AT_REF
from kvctl.cli.repo import options as repo_options
from kvctl.errors import (
    KeyNotFound,
    KvctlError,
    PartlyDone,
    PermissionDenied,
    RefusedError,
    UnreachableError,
    UsageError,
    WrongRevision,
)
from kvctl.kv.names import RESERVED, check_bucket, check_key, is_ref
from kvctl.kv.read import bulk_get
from kvctl.phrases import counted, quoted
from kvctl.render.fields import columns
from kvctl.render.view import Row, View

CONCURRENT_REMOVALS = 64
"""Number of keys that are removed concurrently."""
TOGETHER = 1000
"""Number of deletions that are staged together."""

SomeKeys = Annotated[list[str] | None, argument("KEY", "Keys", key_names)]
Match = Annotated[
    list[str] | None, option("--match", "FILTER", "Remove all matching keys, after confirmation", key_names)
]
IgnoreMissing = Annotated[bool, flag("--ignore-missing", "Ignore keys that do not exist")]


class Removal(NamedTuple):
    """Parameters in which delete and purge differ."""

    verb: str
    past: str
    one: Callable[["kvctl.Bucket", str], Awaitable[int]]
    """Remove a key and return the revision of its marker."""
    wants: Callable[["kvctl.Entry"], bool]
    """Decide by the key's last entry if there is something to remove."""
    asks: bool = False


class KeyChoice(NamedTuple):
    """Selected keys and safety options."""

    keys: list[str]
    filters: list[str]
    literal: bool = False
    dry_run: bool = False
    yes: bool = False
    ignore_missing: bool = False


IfExpected = Annotated[str | None, option("--if-revision", "N", "Expected last revision (one key only)")]


@command(
    "delete",
    examples=[
        "kvctl delete orders NEW.7",
        "kvctl delete orders NEW.7 --if-revision 12",
        "kvctl delete orders --match 'NEW.*' --dry-run",
    ],
    see=["purge", "bucket delete", "bucket compact"],
    prints=(WRITE, WRITE_AT_REF, REMOVAL_PLAN, REMOVAL_PLAN_AT_REF),
)
async def delete(
    session: Session,
    bucket: KeyedName,
    keys: SomeKeys = None,
    if_revision: IfExpected = None,
    match: Match = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    ignore_missing: IgnoreMissing = False,
    literal: Literal = False,
) -> None:
    """Delete keys.

    Writes a delete marker as the key's last entry and prints its revision. Earlier values stay in the history. A key
    that does not exist at the stream's leader gets no marker: it is reported after the others were deleted, with exit
    code 3. With --if-revision, a key that was deleted after that revision is a conflict (4), so only one of several
    concurrent deletions of a revision succeeds. --ignore-missing ignores both.

    --match deletes all keys that match a filter, one by one, after confirmation. --literal deletes non-conforming keys
    that other programs stored, such as `a.*`.

    On a branch of a repository (NAME@BRANCH) the deletion is staged, and --if-revision also takes the key's identity.
    """
    target = parse_target(bucket)
    target.refuse(literal=literal)
    if if_revision is not None:
        target.check_expected(if_revision)
    if literal and (match or if_revision is not None):
        raise UsageError(f"`--literal` and `{'--match' if match else '--if-revision'}` cannot be combined")
    chosen = _choose(keys, match, if_revision)._replace(
        literal=literal, dry_run=dry_run, yes=yes, ignore_missing=ignore_missing
    )
    if is_ref(bucket):
        await _delete_at_branch(session, repo_options.parse_branch(bucket), chosen, if_revision)
    else:
        last = None if if_revision is None else parse_revision(if_revision)
        await _remove(session, bucket, _deletion(chosen, last), chosen)


IfRevision = Annotated[int | None, revision("--if-revision", "Expected last revision (one key only)")]


@command(
    "purge",
    examples=["kvctl purge orders NEW.7 --yes", "kvctl purge orders --match 'NEW.*' --ttl 1h"],
    see=["delete", "history", "bucket compact"],
    prints=(WRITE, REMOVAL_PLAN),
)
async def purge(
    session: Session,
    bucket: BucketName,
    keys: SomeKeys = None,
    if_revision: IfRevision = None,
    ttl: Annotated[timedelta | None, duration("--ttl", "Time until the marker expires")] = None,
    match: Match = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    ignore_missing: IgnoreMissing = False,
) -> None:
    """Delete keys with their history.

    Replaces all stored entries of a key with a purge marker and prints its revision. Asks for confirmation; use --yes
    in scripts. A key without any entry is reported after the others were purged, with exit code 3.

    Mirrors, aggregates and backups of the bucket may keep their copies.
    """

    async def one(target: "kvctl.Bucket", key: str) -> int:
        return await target.purge(key, revision=if_revision, ttl=ttl)

    chosen = _choose(keys, match, if_revision)._replace(dry_run=dry_run, yes=yes, ignore_missing=ignore_missing)
    removal = Removal("Purge", "purged", one, lambda entry: bool(keys) or entry.operation != "PURGE", asks=True)
    await _remove(session, bucket, removal, chosen)


def _choose(keys: list[str] | None, match: list[str] | None, if_revision: object) -> KeyChoice:
    """Return the keys or filters of a command line. Raises UsageError for invalid combinations."""
    if keys and match:
        raise UsageError("KEY and `--match` cannot be combined")
    if not keys and not match:
        raise UsageError("Missing argument `KEY`", hint="Name keys, or select them with `--match FILTER`")
    if if_revision is not None and len(keys or ()) != 1:
        raise UsageError("`--if-revision` takes one key")
    return KeyChoice(list(keys or ()), check_filters(match))


def _deletion(chosen: KeyChoice, last: int | None) -> Removal:
    """Return the removal of `kvctl delete`, of keys whose last revision is `last`, if given."""

    async def one(bucket: "kvctl.Bucket", key: str) -> int:
        try:
            return await (bucket.delete_literal(key) if chosen.literal else bucket.delete(key, revision=last))
        except WrongRevision:
            if chosen.ignore_missing:
                await bucket.get(key, leader=True)  # raises KeyNotFound
            raise

    return Removal("Delete", "deleted", one, lambda entry: entry.operation == "PUT")


async def _remove(session: Session, bucket: str, removal: Removal, chosen: KeyChoice) -> None:
    """Remove the chosen keys and print the revision of each marker. Raises KeyNotFound, PartlyDone."""
    check_bucket(bucket)
    keys = check_keys(chosen.keys, literal=chosen.literal)
    asks = removal.asks or bool(chosen.filters)
    if asks and not (chosen.dry_run or session.interactive):
        await session.confirm(f"{removal.verb} keys from bucket `{bucket}`?", yes=chosen.yes)  # before anything is sent
    target = await open_bucket(session, bucket, write=not chosen.dry_run)
    non_conforming: list[str] = []
    if chosen.filters:
        keys, non_conforming = await _matching(target, removal, chosen.filters)
    if chosen.dry_run:
        await _show_plan(session, target, removal, chosen, keys)
    elif keys:
        if asks:
            await session.confirm(_question(removal.verb, keys, f"bucket `{bucket}`"), yes=chosen.yes)
        await _run(session, target, removal, chosen, keys)
    else:
        session.note("No keys match")
        session.show(writing_view([], single=False))
    if non_conforming:
        _report_non_conforming(session, target, removal, non_conforming, chosen)


async def _matching(bucket: "kvctl.Bucket", removal: Removal, filters: list[str]) -> tuple[list[str], list[str]]:
    """Return matching keys and matching non-conforming keys, both without reserved keys."""
    keys: list[str] = []
    non_conforming: list[str] = []
    async with aclosing(bucket.entry_batches(*filters, deleted=True, values=False)) as batches:
        async for batch in batches:
            for entry in filter(removal.wants, batch):
                if entry.key.partition(".")[0] == RESERVED:
                    continue
                (keys if _is_key(entry.key) else non_conforming).append(entry.key)
    return keys, non_conforming


def _is_key(text: str) -> bool:
    try:
        return bool(check_key(text))
    except UsageError:
        return False


def _question(verb: str, keys: Sequence[str], place: str) -> str:
    """Return the question that confirms the removal of keys from a place."""
    if len(keys) == 1:
        return f"{verb} key `{keys[0]}` from {place}?"
    shown = quoted(keys[:3])
    return f"{verb} {counted(len(keys), 'key')} from {place} ({shown}{', …' if len(keys) > 3 else ''})?"


async def _show_plan(
    session: Session, bucket: "kvctl.Bucket", removal: Removal, chosen: KeyChoice, keys: list[str]
) -> None:
    """Show the keys that would be removed, for `--dry-run`."""
    missing: list[str] = []
    if not chosen.filters:
        keys, missing = await _present(bucket, removal, keys, chosen.literal)
    _show_keys(session, {"bucket": bucket.name}, keys, removal.past)
    _report_missing(bucket, missing, chosen)


def _show_keys(session: Session, place: Mapping[str, str], keys: Sequence[str], past: str) -> None:
    """Show the keys of a dry run, with the fields of their place in JSON."""
    session.show(View(columns=columns("key"), rows=[{**place, "key": key} for key in keys], name="key", light=True))
    session.note(f"{counted(len(keys), 'key')} would be {past}")


async def _present(
    bucket: "kvctl.Bucket", removal: Removal, keys: list[str], literal: bool
) -> tuple[list[str], list[str]]:
    """Separate keys with something to remove from missing ones."""
    there: list[str] = []
    missing: list[str] = []
    for key in keys:
        entry = await (
            bulk_get.literal_entry(bucket, key, leader=True) if literal else bucket.last_entry(key, leader=True)
        )
        (there if entry is not None and removal.wants(entry) else missing).append(key)
    return there, missing


async def _run(session: Session, bucket: "kvctl.Bucket", removal: Removal, chosen: KeyChoice, keys: list[str]) -> None:
    done = 0
    missing: dict[str, KvctlError] = {}
    failed: dict[str, KvctlError] = {}

    async def batches() -> AsyncIterator[Sequence[Row]]:
        nonlocal done
        with session.progress(f"{removal.verb[:-1]}ing keys", len(keys), unit="keys") as progress:
            for start in range(0, len(keys), CONCURRENT_REMOVALS):
                chunk = keys[start : start + CONCURRENT_REMOVALS]
                outcomes = await _all(removal.one(bucket, key) for key in chunk)
                rows = []
                for key, outcome in zip(chunk, outcomes, strict=True):
                    if isinstance(outcome, int):
                        rows.append({"bucket": bucket.name, "key": key, "revision": outcome})
                    else:
                        (missing if isinstance(outcome, KeyNotFound) else failed)[key] = outcome
                done += len(rows)
                yield rows
                progress.advance(len(chunk))
                if any(_is_final(error) for error in failed.values()):
                    return

    single = len(keys) == 1 and not chosen.filters
    await session.stream(writing_view([], single=single), batches())
    if failed:
        raise _failure(removal, failed, done, len(keys))
    if len(missing) == 1 and len(keys) == 1 and not (chosen.ignore_missing or chosen.filters):
        raise next(iter(missing.values()))
    _report_missing(bucket, [] if chosen.filters else list(missing), chosen)


async def _all(removals: Iterable[Awaitable[int]]) -> list[int | KvctlError]:
    """Return the outcome of each removal; any other exception than KvctlError is raised."""
    outcomes = await asyncio.gather(*removals, return_exceptions=True)
    found: list[int | KvctlError] = []
    for outcome in outcomes:
        if not isinstance(outcome, int | KvctlError):
            raise outcome
        found.append(outcome)
    return found


def _is_final(error: KvctlError) -> bool:
    """Return True if the remaining keys would fail with the same error."""
    return isinstance(error, UnreachableError | RefusedError) and not isinstance(error, PermissionDenied)


def _failure(removal: Removal, failed: dict[str, KvctlError], done: int, wanted: int) -> KvctlError:
    key, error = next(iter(failed.items()))
    if not done:
        return error
    return PartlyDone(
        f"{done} of {wanted} keys were {removal.past}; `{key}` was not: {error.message}",
        hint="Run the command again to complete it",
    )


def _report_missing(bucket: "kvctl.Bucket", missing: list[str], chosen: KeyChoice) -> None:
    if missing and not chosen.ignore_missing:
        raise KeyNotFound(
            f"{listed(missing)} not in bucket `{bucket.name}`", hint="Use `--ignore-missing` to ignore missing keys"
        )


def _report_non_conforming(
    session: Session, bucket: "kvctl.Bucket", removal: Removal, non_conforming: list[str], chosen: KeyChoice
) -> None:
    """Report matching keys that only `--literal` may remove. Raises PartlyDone unless it is a dry run."""
    message = f"{listed(non_conforming)} non-conforming (ADR-8) and not {removal.past}"
    if chosen.dry_run:
        session.warn(message)
        return
    raise PartlyDone(message, hint=f"Delete such a key with `kvctl delete {bucket.name} KEY --literal`")


async def _delete_at_branch(session: Session, at: "repo_options.At", choice: KeyChoice, expected: str | None) -> None:
    """Stage the deletion of the chosen keys, and print the revisions. Raises KeyNotFound, ConflictError."""
    named, filters = check_keys(choice.keys), check_filters(choice.filters)
    wanted = None if expected is None else ref_target.parse_expected(expected)
    if filters and not (choice.dry_run or session.interactive):
        await session.confirm(f"Delete keys from `{at}`?", yes=choice.yes)  # before anything is sent
    repository = await repo_options.open_branch(session, at, write=not choice.dry_run)
    if filters:
        batches = repository.entry_batches(at.ref, *filters, values=False)
        found, missing = [entry.key async for batch in batches for entry in batch], []
    else:
        there = await repository.get(at.ref, *named)
        found = [entry.key for entry in there if entry is not None]
        missing = [key for key, entry in zip(named, there, strict=True) if entry is None]
    single = len(named) == 1
    if choice.dry_run:
        _show_keys(session, {"bucket": at.repository, "ref": at.ref}, found, "deleted")
    elif found:
        if filters:
            await session.confirm(_question("Delete", found, f"`{at}`"), yes=choice.yes)
        await _stage_deletions(session, repository, at, found, wanted, single=single)
    elif not single:
        session.show(ref_target.written_view([], single=False, empty="No keys match" if filters else ""))
    if missing and not choice.ignore_missing:
        raise KeyNotFound(f"{listed(missing)} not in `{at}`", hint="Use `--ignore-missing` to ignore missing keys")


async def _stage_deletions(
    session: Session,
    repository: "kvctl.Repository",
    at: "repo_options.At",
    keys: Sequence[str],
    wanted: str | int | None,
    *,
    single: bool,
) -> None:
    revisions: dict[str, int] = {}
    if wanted is not None:
        revisions[keys[0]] = await ref_target.write_if(repository, at, keys[0], None, wanted)
    else:
        for start in range(0, len(keys), TOGETHER):
            revisions |= await repository.put_many(at.ref, dict.fromkeys(keys[start : start + TOGETHER]))
    rows = [ref_target.row(at, key, None, revisions[key]) for key in keys]
    if single:
        ref_target.show_one(session, rows[0], f"Staged the deletion of `{keys[0]}` on `{at.ref}`")
    else:
        session.show(ref_target.written_view(rows, single=False))
