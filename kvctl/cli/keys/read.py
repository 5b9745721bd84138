"""Reads of keys: `kvctl get`, `history` and `keys`."""

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager, nullcontext
from typing import Annotated, Any, TypeVar

from kvctl.cli.app.command import command
from kvctl.cli.app.options import Filters, KeyedName, KeyNames, flag, number
from kvctl.cli.app.session import Session
from kvctl.cli.bucket import details
from kvctl.cli.keys.arguments import (
    AsOf,
    Encoding,
    Fact,
    Headers,
    Literal,
    Reading,
    Since,
    check_filters,
    revision,
    split_keys,
)
from kvctl.cli.keys.bucket_target import TargetReader, parse_target
from kvctl.cli.keys.output import Shape
from kvctl.cli.records import ENTRY, ENTRY_AT_REF, KEY, KEY_AT_REF, KEY_COUNT
from kvctl.errors import Away, UsageError
from kvctl.kv.names import is_ref
from kvctl.render.escapes import escape
from kvctl.render.fields import columns
from kvctl.render.view import Row, View


@command(
    "get",
    examples=[
        "kvctl get orders NEW.7",
        "kvctl get orders NEW.7 NEW.8 -o json",
        "kvctl get orders 'NEW.*' -o ndjson | jq -r .value",
        "kvctl get orders NEW.7 --revision 12",
        "kvctl get orders 'NEW.*' --as-of -15m",
        "kvctl get config@main app.port",
    ],
    see=["keys", "history", "watch", "help guarantees"],
    prints=(ENTRY, ENTRY_AT_REF),
)
async def get(
    session: Session,
    bucket: KeyedName,
    keys: KeyNames,
    revision: Annotated[int | None, revision("--revision", "Value of this revision of the key")] = None,
    as_of: AsOf = None,
    leader: Annotated[bool, flag("--leader", "Read from the stream's leader, which is never stale")] = False,
    limit: Annotated[int | None, number("--limit", "Maximum number of entries that match a filter")] = None,
    headers: Headers = False,
    encoding: Encoding = None,
    literal: Literal = False,
) -> None:
    """Read keys.

    One key without wildcards prints its value: the exact bytes in a pipe, escaped and with a newline on a terminal.
    With -o or --headers it prints the complete entry.

    Several keys, or a filter with `*` (one token) or `>` (all that follow), print entries: first the named keys in the
    given order, then the matches of the filters. If a named key does not exist, was deleted or has expired, the command
    reports it after printing the others and exits 3. A filter may match nothing.

    The nearest replica answers, which may be a mirror, even if the bucket's own servers are down. --leader reads from
    the stream's leader, which is never stale.

    --as-of reads an earlier state: immediately after a revision of the bucket, or at a time (RFC 3339, or `-15m` for 15
    minutes ago), including writes at exactly that time. If the history is too short or was purged, so that the bucket
    no longer holds the state of a key, the command prints nothing, names the keys and exits 3.

    NAME@REF reads a repository: at a branch with its staged changes, at a tag, a commit or `main@` as committed.
    """
    target = parse_target(bucket)
    target.refuse(revision=revision, as_of=as_of, headers=headers, literal=literal)
    named, filters = split_keys(keys, literal=literal)
    if revision is not None and (filters or len(named) != 1):
        raise UsageError("`--revision` takes one key", hint="A revision belongs to one key: `kvctl history` shows it")
    if revision is not None and as_of is not None:
        raise UsageError("`--revision` and `--as-of` cannot be combined")
    if limit is not None and not filters:
        raise UsageError("`--limit` needs a filter")
    shape = Shape(encoding=encoding, headers=headers)
    reading = Reading(shape, revision, as_of, leader=leader, literal=literal)
    async with _naming_others(session, bucket, "get", keys):
        reader = await target.reader(session, reading)
        if filters or len(named) != 1:
            await _show_several(session, reader, named, filters, limit)
        else:
            await reader.show_one(session, await reader.one(named[0]))
        if reader.caveat:
            session.warn(reader.caveat)


async def _show_several(
    session: Session, reader: TargetReader, named: Sequence[str], filters: Sequence[str], limit: int | None
) -> None:
    """Print the entries, then raise KeyNotFound for named keys that are missing."""
    missing: list[str] = []
    matched = 0

    async def batches() -> AsyncGenerator[list[Any], None]:
        nonlocal matched
        found = await reader.named(named) if named else []
        missing.extend(key for key, entry in zip(named, found, strict=True) if entry is None)
        there = [entry for entry in found if entry is not None]
        if filters:
            shown = set(named)
            async with aclosing(reader.matching(filters)) as matching:
                left = limit
                async for batch in matching:  # raises before its first batch if the history is too short
                    matched += len(batch)
                    others = [entry for entry in batch if entry.key not in shown][:left]
                    yield [*there, *others]
                    there = []
                    left = None if left is None else left - len(others)
                    if left == 0:
                        return
        yield there

    async with reader.noticing_unindexed(session) if filters else nullcontext():
        await reader.show(session, batches(), empty="" if named else "No keys match")
    if filters and not matched and reader.unsure(filters):
        session.warn("No keys match, but the leader of the stream did not confirm it")
    if missing:
        raise reader.absent(missing)


@command(
    "history",
    examples=[
        "kvctl history orders NEW.7",
        "kvctl history orders 'NEW.*' --limit 20 -o ndjson",
        "kvctl history orders --since -15m",
    ],
    see=["get", "revert", "watch"],
    prints=(ENTRY, ENTRY_AT_REF),
)
async def history(
    session: Session,
    bucket: KeyedName,
    filters: Filters = None,
    since: Since = None,
    limit: Annotated[int | None, number("--limit", "Maximum number of entries, the newest")] = None,
    headers: Headers = False,
    encoding: Encoding = None,
    literal: Literal = False,
) -> None:
    """Show earlier values of keys.

    Prints every entry that the bucket still holds, oldest first, including deletions: per key, as many as the bucket's
    history allows. --limit keeps the newest matching entries, still oldest first. --since keeps those written at TIME
    or later (RFC 3339, or `-15m` for 15 minutes ago by the server's clock).

    At a ref of a repository (NAME@REF) there is one entry per key for each commit that changed it. Staged changes of
    the branch come last. There --since compares the times of the commits.
    """
    target = parse_target(bucket)
    target.refuse(headers=headers, literal=literal)
    wanted = check_filters(filters, literal=literal)
    async with _naming_others(session, bucket, "history", filters or ()):
        reader = await target.reader(session, Reading(Shape(encoding=encoding, headers=headers), literal=literal))

        async def batches() -> AsyncGenerator[list[Any], None]:
            newest: deque[Any] = deque(maxlen=limit)
            async with aclosing(reader.history(wanted, since)) as changes:
                async for batch in changes:
                    if limit is None:
                        yield batch
                    else:
                        newest.extend(batch)
            yield list(newest)

        await reader.show_history(session, batches())
        if reader.unsure(wanted):
            session.warn("No entries match, but the origin of the mirror did not confirm it")


CHUNK = 10_000
T = TypeVar("T", bytes, Fact)


@command(
    "keys",
    examples=[
        "kvctl keys orders",
        "kvctl keys orders 'NEW.>' --sort --limit 10",
        "kvctl keys orders -o ndjson",
        "kvctl keys orders 'NEW.>' --count",
    ],
    see=["get", "history", "bucket show"],
    prints=(KEY, KEY_AT_REF, KEY_COUNT),
)
async def keys(
    session: Session,
    bucket: KeyedName,
    filters: Filters = None,
    deleted: Annotated[bool, flag("--deleted", "Include keys whose last entry is a deletion")] = False,
    limit: Annotated[int | None, number("--limit", "Maximum number of keys")] = None,
    sort: Annotated[bool, flag("--sort", "Sort by name instead of by last write")] = False,
    count: Annotated[bool, flag("--count", "Print only the number of matching keys")] = False,
    as_of: AsOf = None,
) -> None:
    """List keys.

    Every key that exists during the complete listing is listed exactly once, even if it is written concurrently. A key
    that is created or deleted during the listing may or may not be listed.

    In a pipe the output is one name per line, in JSON objects with key, revision and created, and with --deleted the
    operation. --sort keeps all names in memory before it prints the first. --as-of lists the keys of an earlier state,
    as in `kvctl get --as-of`. --count prints only the number of keys. At a ref of a repository (NAME@REF) keys are
    always sorted.
    """
    if count and limit is not None:
        raise UsageError("`--count` and `--limit` cannot be combined")
    target = parse_target(bucket)
    target.refuse(deleted=deleted, as_of=as_of)
    wanted = check_filters(filters)
    async with _naming_others(session, bucket, "keys", filters or ()):
        reader = await target.reader(session, Reading(Shape(table=session.output == "table"), as_of=as_of))
        if count:
            shown = columns("count", count="Keys")
            async with aclosing(reader.names(wanted, deleted=deleted)) as batches:
                number = sum([len(batch) async for batch in batches])
            session.show(View(columns=shown, rows=[{**reader.fields, "count": number}], single=True, name="count"))
        elif session.output == "name" or (session.output == "tsv" and not session.options.columns):
            names = _limited(reader.names(wanted, deleted=deleted), limit, sort)
            await session.stream_bytes(_lines(session, names))
        else:
            facts = _limited(reader.facts(wanted, deleted=deleted), limit, sort)
            await session.stream(reader.facts_view(deleted=deleted), _rows(reader, facts, deleted))
        if reader.caveat:
            session.warn(reader.caveat)


@asynccontextmanager
async def _naming_others(session: Session, bucket: str, verb: str, words: Sequence[str]) -> AsyncIterator[None]:
    """Add to the error of a bucket or mirror that does not answer the command that reads the same keys elsewhere."""
    try:
        yield
    except Away as error:
        if not is_ref(bucket) and (hint := await details.hint_of_others(session, bucket, verb, words)):
            error.hint = hint
        raise


async def _lines(session: Session, names: AsyncGenerator[list[bytes], None]) -> AsyncIterator[bytes]:
    """Yield names as lines of output, batch by batch."""
    escaped = session.terminal.is_terminal
    backslashes = session.output == "tsv"
    if session.options.header and backslashes:
        yield b"key\n"
    async with aclosing(names):
        async for batch in names:
            lines = b"\n".join(batch) + b"\n" if batch else b""
            if backslashes and b"\\" in lines:
                lines = lines.replace(b"\\", b"\\\\")
            yield escape(lines.decode("utf-8", "surrogateescape"), keep="\n").encode() if escaped else lines


async def _rows(
    reader: TargetReader, facts: AsyncGenerator[list[Fact], None], deleted: bool
) -> AsyncIterator[Sequence[Row]]:
    async with aclosing(facts):
        async for batch in facts:
            yield await reader.fact_rows(batch, deleted=deleted)


async def _limited(
    batches: AsyncGenerator[list[T], None], limit: int | None, sort: bool
) -> AsyncGenerator[list[T], None]:
    """Yield batches up to the limit; with `sort`, sort all of them first."""
    async with aclosing(batches):
        if sort:
            everything = sorted(
                [item async for batch in batches for item in batch],
                key=lambda item: item if isinstance(item, bytes) else item[0],
            )[:limit]
            for start in range(0, len(everything), CHUNK):
                yield everything[start : start + CHUNK]
            return
        left = limit
        async for batch in batches:
            yield batch[:left]
            if left is not None:
                left -= len(batch)
                if left <= 0:
                    return
