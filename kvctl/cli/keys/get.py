"""`kvctl get`: values of keys, now or at a point in time."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from kvctl.cli.app.command import command, group
from kvctl.cli.app.parameters import KeyedName, KeyNames
from kvctl.cli.app.session import Session
from kvctl.cli.keys.arguments import AsOf, Encoding, Headers, Literal, listed, open_bucket, revision, split_keys
from kvctl.cli.keys.output.entry_rows import Shape, encode
from kvctl.cli.keys.output.entry_stream import show_entries
from kvctl.errors import KeyNotFound, UsageError

if TYPE_CHECKING:
    from kvctl.kv.bucket import Bucket
    from kvctl.kv.entry import Entry
    from kvctl.kv.point_in_time.as_of import Past

app = group()


class _Reader(Protocol):
    """Protocol for reading a bucket's current or earlier state."""

    bucket: str
    when: str
    """Empty, or ` as of revision 12`."""
    caveat: str | None
    """Warning about what may be missing from the snapshot."""

    async def one(self, key: str) -> "Entry":
        """Return a live key. Raises KeyNotFound."""

    async def named(self, keys: Sequence[str]) -> list["Entry | None"]:
        """Return the entries of keys in batches, None for keys that are not live."""

    def matching(self, filters: Sequence[str]) -> AsyncGenerator[list["Entry"], None]:
        """Return the live keys that match, in batches."""


class _CurrentReader(_Reader):
    """Current state: `leader` for reads that are never stale, `literal` for non-conforming keys, `revision` of one."""

    when = ""
    caveat = None

    def __init__(self, bucket: "Bucket", *, revision: int | None, leader: bool, literal: bool) -> None:
        self.bucket = bucket.name
        self._source = bucket
        self._revision = revision
        self._leader = leader
        self._literal = literal

    async def one(self, key: str) -> "Entry":
        get = self._source.get_literal if self._literal else self._source.get
        return await get(key, revision=self._revision, leader=self._leader)

    async def named(self, keys: Sequence[str]) -> list["Entry | None"]:
        if not self._literal:
            return await self._source.get_many(keys, leader=self._leader)
        return [await self._if_there(key) for key in keys]

    def matching(self, filters: Sequence[str]) -> AsyncGenerator[list["Entry"], None]:
        return self._source.get_matching(*filters, leader=self._leader)

    async def _if_there(self, key: str) -> "Entry | None":
        try:
            return await self.one(key)
        except KeyNotFound:
            return None


class _AsOfReader(_Reader):
    """Earlier state."""

    def __init__(self, past: "Past", *, literal: bool) -> None:
        self.bucket = past.bucket
        self.when = f" as of {past.moment}"
        self.caveat = past.caveat
        self._past = past
        self._literal = literal

    async def one(self, key: str) -> "Entry":
        return await self._past.get(key, literal=self._literal)

    async def named(self, keys: Sequence[str]) -> list["Entry | None"]:
        return await self._past.get_many(keys, literal=self._literal)

    def matching(self, filters: Sequence[str]) -> AsyncGenerator[list["Entry"], None]:
        return self._past.entry_batches(*filters)


@command(
    app,
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
    if "@" in bucket:
        from kvctl.cli.keys.at_ref import ref_read, ref_rows

        ref_rows.refuse(bucket, revision=revision, as_of=as_of, headers=headers, literal=literal)
        await ref_read.get(session, bucket, keys, encoding)
        return
    named, filters = split_keys(keys, literal=literal)
    if revision is not None and (filters or len(named) != 1):
        raise UsageError("`--revision` takes one key", hint="A revision belongs to one key: `kvctl history` shows it")
    if revision is not None and as_of is not None:
        raise UsageError("`--revision` and `--as-of` cannot be combined")
    source = await open_bucket(session, bucket)
    reader: _Reader = _CurrentReader(source, revision=revision, leader=leader, literal=literal)
    if as_of is not None:
        reader = _AsOfReader(await source.as_of(as_of), literal=literal)
    shape = Shape(encoding=encoding, headers=headers)
    if filters or len(named) != 1:
        await _show_several(session, reader, named, filters, shape)
    else:
        _show_one(session, await reader.one(named[0]), shape)
    if reader.caveat:
        session.warn(reader.caveat)


def _show_one(session: Session, entry: "Entry", shape: Shape) -> None:
    """Show the bare value, or the entry if a format or headers were requested."""
    if session.options.output is not None or shape.headers:
        session.show(shape.document(entry))
    elif shape.encoding == "base64":
        session.value(f"{encode(entry, 'base64')[0]}\n".encode())
    else:
        encode(entry, shape.encoding)  # raises if UTF-8 was requested and the value is not
        session.value(entry.value)


async def _show_several(
    session: Session, reader: _Reader, named: Sequence[str], filters: Sequence[str], shape: Shape
) -> None:
    """Print the entries, then raise KeyNotFound for named keys that are missing."""
    missing: list[str] = []

    async def batches() -> AsyncGenerator[list["Entry"], None]:
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

    await show_entries(session, shape, batches(), empty="" if named else "No keys match")
    if missing:
        raise KeyNotFound(
            f"{listed(missing)} not in bucket `{reader.bucket}`{reader.when}",
            hint=f"List the keys with `kvctl keys {reader.bucket}`" if not reader.when else None,
        )
