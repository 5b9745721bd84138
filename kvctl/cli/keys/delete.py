"""Removing keys: delete and purge, by name or by filter."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from kvctl.cli.app.command import command, group
from kvctl.cli.app.parameters import (
    BucketName,
    DryRun,
    KeyedName,
    Yes,
    duration,
    key_names,
)
from kvctl.cli.app.session import Session
from kvctl.cli.keys.arguments import (
    Literal,
    check_filters,
    check_keys,
    expected,
    listed,
    open_bucket,
    parse_revision,
    revision,
)
from kvctl.cli.keys.entry_rows import writing_view
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
from kvctl.kv.names import RESERVED, check_bucket, check_key
from kvctl.render.view import Column, Row, View

if TYPE_CHECKING:
    from kvctl.kv.bucket import Bucket
    from kvctl.kv.entry import Entry

app = group()

AT_ONCE = 64
"""Keys whose removal is under way at the same time."""

SomeKeys = Annotated[list[str] | None, typer.Argument(metavar="KEY", help="Keys", autocompletion=key_names)]
IfRevision = Annotated[int | None, revision("--if-revision", help="Only if this is the last revision; one key")]
IfExpected = Annotated[str | None, expected("--if-revision", help="Only if this is the last revision; one key")]
Match = Annotated[
    list[str] | None,
    typer.Option("--match", metavar="FILTER", help="All keys that match; asks first", autocompletion=key_names),
]
IgnoreMissing = Annotated[bool, typer.Option("--ignore-missing", help="A key that is not there is no error")]


class Removal(NamedTuple):
    """How delete and purge differ."""

    verb: str
    past: str
    one: Callable[["Bucket", str], Awaitable[int]]
    """Removes a key; the revision of its marker."""
    wants: Callable[["Entry"], bool]
    """Whether there is something to remove, by the key's last entry."""
    asks: bool = False


class Choice(NamedTuple):
    """Which keys, and how carefully."""

    keys: list[str]
    filters: list[str]
    literal: bool = False
    dry_run: bool = False
    yes: bool = False
    ignore_missing: bool = False


@command(
    app,
    "delete",
    examples=[
        "kvctl delete orders NEW.7",
        "kvctl delete orders NEW.7 --if-revision 12",
        "kvctl delete orders --match 'NEW.*' --dry-run",
    ],
    see=["purge", "bucket delete", "bucket compact"],
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
    """Mark keys as deleted.

    A marker becomes the key's last entry; what it held before stays in its history. Prints the revision of each marker.
    A key that is not there, as the stream's leader sees it, gets none: it is reported after the others were deleted,
    with exit code 3. With --if-revision, a key that was deleted after that revision is a conflict, with exit code 4; so
    of several who delete the same revision, one gets 0 and the others 4. --ignore-missing lets both pass.

    --match takes a filter, finds the keys that it means, and asks before it deletes them one by one (--yes elsewhere).
    --literal deletes keys that other programs stored under names that are none here, such as `a.*`.

    On a branch of a repository (NAME@BRANCH) the deletion is staged; --if-revision takes the key's identity, too.
    """
    if "@" in bucket:
        from kvctl.cli.keys.at_ref import ref_rows, ref_stage

        ref_rows.refuse(bucket, literal=literal)
        picked = _choice(keys, match, if_revision)
        await ref_stage.delete(
            session, bucket, picked.keys, picked.filters, if_revision,
            dry_run=dry_run, yes=yes, ignore_missing=ignore_missing,
        )  # fmt: skip
        return
    last = None if if_revision is None else parse_revision(if_revision)

    async def one(target: "Bucket", key: str) -> int:
        try:
            return await (target.delete_literal(key) if literal else target.delete(key, revision=last))
        except WrongRevision:
            if ignore_missing:
                await target.get(key, leader=True)  # raises KeyNotFound
            raise

    if literal and (match or last is not None):
        raise UsageError(f"`--literal` excludes `{'--match' if match else '--if-revision'}`")
    chosen = _choice(keys, match, if_revision)._replace(
        literal=literal, dry_run=dry_run, yes=yes, ignore_missing=ignore_missing
    )
    await _remove(session, bucket, Removal("Delete", "deleted", one, lambda entry: entry.operation == "PUT"), chosen)


@command(
    app,
    "purge",
    examples=["kvctl purge orders NEW.7 --yes", "kvctl purge orders --match 'NEW.*' --ttl 1h"],
    see=["delete", "history", "bucket compact"],
)
async def purge(
    session: Session,
    bucket: BucketName,
    keys: SomeKeys = None,
    if_revision: IfRevision = None,
    ttl: Annotated[timedelta | None, duration("--ttl", help="The marker goes by itself after this")] = None,
    match: Match = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    ignore_missing: IgnoreMissing = False,
) -> None:
    """Remove keys with their history.

    A marker takes the place of all that the bucket holds of the key. Prints the revision of each marker. Asks first
    (--yes elsewhere). A key of which there is nothing is reported after the others were purged, with exit code 3.

    Mirrors and aggregates of the bucket may keep what they have copied, backups too.
    """

    async def one(target: "Bucket", key: str) -> int:
        return await target.purge(key, revision=if_revision, ttl=ttl)

    chosen = _choice(keys, match, if_revision)._replace(dry_run=dry_run, yes=yes, ignore_missing=ignore_missing)
    removal = Removal("Purge", "purged", one, lambda entry: entry.operation != "PURGE", asks=True)
    await _remove(session, bucket, removal, chosen)


def _choice(keys: list[str] | None, match: list[str] | None, if_revision: object) -> Choice:
    if keys and match:
        raise UsageError("KEY and `--match` exclude each other")
    if not keys and not match:
        raise UsageError("Missing argument `KEY`", hint="Name keys, or take those that match with `--match FILTER`")
    if if_revision is not None and len(keys or ()) != 1:
        raise UsageError("`--if-revision` takes one key")
    return Choice(list(keys or ()), check_filters(match))


async def _remove(session: Session, bucket: str, removal: Removal, chosen: Choice) -> None:
    check_bucket(bucket)
    keys = check_keys(chosen.keys, literal=chosen.literal)
    asks = removal.asks or bool(chosen.filters)
    if asks and not (chosen.dry_run or session.interactive):
        await session.confirm(f"{removal.verb} keys of bucket `{bucket}`?", yes=chosen.yes)  # before anything is sent
    target = await open_bucket(session, bucket, write=True)
    foreign: list[str] = []
    if chosen.filters:
        keys, foreign = await _matching(target, removal, chosen.filters)
    if chosen.dry_run:
        await _show_plan(session, target, removal, chosen, keys)
    elif keys:
        if asks:
            await session.confirm(_question(removal, keys, bucket), yes=chosen.yes)
        await _carry_out(session, target, removal, chosen, keys)
    else:
        session.note("No keys match")
        session.show(writing_view([], single=False))
    if foreign:
        _report_foreign(session, target, foreign, chosen)


async def _matching(bucket: "Bucket", removal: Removal, filters: list[str]) -> tuple[list[str], list[str]]:
    """The keys that the filters mean, and the foreign ones among what they match; reserved keys are not meant."""
    keys: list[str] = []
    foreign: list[str] = []
    async with aclosing(bucket.entry_batches(*filters, deleted=True, values=False)) as batches:
        async for batch in batches:
            for entry in filter(removal.wants, batch):
                if entry.key.partition(".")[0] == RESERVED:
                    continue
                (keys if _is_key(entry.key) else foreign).append(entry.key)
    return keys, foreign


def _is_key(text: str) -> bool:
    try:
        return bool(check_key(text))
    except UsageError:
        return False


def _question(removal: Removal, keys: Sequence[str], bucket: str) -> str:
    if len(keys) == 1:
        return f"{removal.verb} key `{keys[0]}` of bucket `{bucket}`?"
    shown = ", ".join(f"`{key}`" for key in keys[:3])
    return f"{removal.verb} {len(keys)} keys of bucket `{bucket}` ({shown}{', …' if len(keys) > 3 else ''})?"


async def _show_plan(session: Session, bucket: "Bucket", removal: Removal, chosen: Choice, keys: list[str]) -> None:
    """`--dry-run`: the keys that would go, and nothing done."""
    missing: list[str] = []
    if not chosen.filters:
        keys, missing = await _there(bucket, removal, keys, chosen.literal)
    rows = [{"bucket": bucket.name, "key": key} for key in keys]
    session.show(View(columns=[Column("bucket", tsv=False, table=False), Column("key")], rows=rows, name="key"))
    session.note(f"{len(keys)} {'key' if len(keys) == 1 else 'keys'} would be {removal.past}")
    _report_missing(bucket, missing, chosen)


async def _there(bucket: "Bucket", removal: Removal, keys: list[str], literal: bool) -> tuple[list[str], list[str]]:
    """Which of the keys have something to remove, and which have not."""
    from kvctl.kv.read.selection import literal_entry

    there: list[str] = []
    missing: list[str] = []
    for key in keys:
        entry = await (literal_entry(bucket, key, leader=True) if literal else bucket.last_entry(key, leader=True))
        (there if entry is not None and removal.wants(entry) else missing).append(key)
    return there, missing


async def _carry_out(session: Session, bucket: "Bucket", removal: Removal, chosen: Choice, keys: list[str]) -> None:
    done = 0
    missing: dict[str, KvctlError] = {}
    failed: dict[str, KvctlError] = {}

    async def batches() -> AsyncIterator[Sequence[Row]]:
        nonlocal done
        with session.progress(f"{removal.verb[:-1]}ing keys", len(keys)) as progress:
            for start in range(0, len(keys), AT_ONCE):
                chunk = keys[start : start + AT_ONCE]
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
    """The outcome of each; other errors than ours end it."""
    import asyncio

    outcomes = await asyncio.gather(*removals, return_exceptions=True)
    found: list[int | KvctlError] = []
    for outcome in outcomes:
        if not isinstance(outcome, int | KvctlError):
            raise outcome
        found.append(outcome)
    return found


def _is_final(error: KvctlError) -> bool:
    """Whether the keys that are left would meet the same error."""
    return isinstance(error, UnreachableError | RefusedError) and not isinstance(error, PermissionDenied)


def _failure(removal: Removal, failed: dict[str, KvctlError], done: int, wanted: int) -> KvctlError:
    key, error = next(iter(failed.items()))
    if not done:
        return error
    return PartlyDone(
        f"{done} of {wanted} keys were {removal.past}; `{key}` was not: {error.message}",
        hint="Running the command again does the others",
    )


def _report_missing(bucket: "Bucket", missing: list[str], chosen: Choice) -> None:
    if missing and not chosen.ignore_missing:
        raise KeyNotFound(f"{listed(missing)} not in bucket `{bucket.name}`", hint="`--ignore-missing` lets that pass")


def _report_foreign(session: Session, bucket: "Bucket", foreign: list[str], chosen: Choice) -> None:
    """Keys that match but that only `--literal` may name: left alone, which makes the command half done."""
    message = f"{listed(foreign)} not what ADR-8 calls a key, and left alone"
    if chosen.dry_run:
        session.warn(message)
        return
    raise PartlyDone(message, hint=f"`kvctl delete {bucket.name} KEY --literal` deletes such a key")
