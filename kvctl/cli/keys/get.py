"""`kvctl get`: values of keys, now or at a point in time."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Annotated, Any

import typer

from kvctl.cli.app.command import command
from kvctl.cli.app.options import KeyedName, KeyNames
from kvctl.cli.app.session import Session
from kvctl.cli.keys.arguments import AsOf, Encoding, Headers, Literal, listed, revision, split_keys
from kvctl.cli.keys.output.entry_rows import Shape
from kvctl.cli.keys.target.interface import Reader, Reading
from kvctl.cli.keys.target.target import parse_target
from kvctl.cli.records import ENTRY, ENTRY_AT_REF
from kvctl.errors import KeyNotFound, UsageError


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
    revision: Annotated[int | None, revision("--revision", help="Value of this revision of the key")] = None,
    as_of: AsOf = None,
    leader: Annotated[
        bool, typer.Option("--leader", help="Read from the stream's leader, which is never stale")
    ] = False,
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
    shape = Shape(encoding=encoding, headers=headers)
    reading = Reading(revision=revision, as_of=as_of, leader=leader, literal=literal, shape=shape)
    reader = await target.reader(session, reading)
    if filters or len(named) != 1:
        await _show_several(session, reader, named, filters)
    else:
        await reader.show_one(session, await reader.one(named[0]))
    if reader.caveat:
        session.warn(reader.caveat)


async def _show_several(session: Session, reader: Reader, named: Sequence[str], filters: Sequence[str]) -> None:
    """Print the entries, then raise KeyNotFound for named keys that are missing."""
    missing: list[str] = []

    async def batches() -> AsyncGenerator[list[Any], None]:
        found = await reader.named(named) if named else []
        missing.extend(key for key, entry in zip(named, found, strict=True) if entry is None)
        there = [entry for entry in found if entry is not None]
        if filters:
            shown = set(named)
            async with aclosing(reader.matching(filters)) as matching:
                async for batch in matching:  # raises before its first batch if the history is too short
                    yield [*there, *(entry for entry in batch if entry.key not in shown)]
                    there = []
        yield there

    await reader.show(session, batches(), empty="" if named else "No keys match")
    if missing:
        raise KeyNotFound(f"{listed(missing)} not in {reader.place}", hint=reader.listing)
