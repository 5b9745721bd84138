"""`kvctl dump`: dump a bucket to a file that `load` reads."""

import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, BinaryIO, cast

import typer

from kvctl import atomic_file
from kvctl.cli.app.command import command
from kvctl.cli.app.options import Filters, KeyedName
from kvctl.cli.app.session import Session
from kvctl.cli.keys.arguments import AsOf, check_filters
from kvctl.cli.keys.target.target import parse_target
from kvctl.cli.records import DUMPED
from kvctl.errors import KvctlError, PartlyDone, UsageError
from kvctl.kv.bulk import dumper
from kvctl.phrases import counted, quoted
from kvctl.render import escapes
from kvctl.render.view import Column, document

BLOCK = 1 << 20
NAMED = 100
"""Maximum number of keys to name in an error; `-v` names all."""


@command(
    "dump",
    examples=[
        "kvctl dump orders > orders.ndjson",
        "kvctl dump orders --history --to orders.ndjson",
        "kvctl dump orders 'NEW.>' | kvctl load orders-new -",
        "kvctl dump orders --as-of -1h --to orders-before.ndjson",
        "kvctl dump config@v1 --to config-v1.ndjson",
    ],
    see=["load", "bucket backup", "bucket copy", "help formats"],
    prints=(DUMPED,),
)
async def dump(
    session: Session,
    bucket: KeyedName,
    filters: Filters = None,
    history: Annotated[
        bool, typer.Option("--history", help="Dump all entries with their operations, oldest first")
    ] = False,
    as_of: AsOf = None,
    to: Annotated[
        Path | None, typer.Option("--to", metavar="FILE", help="Output file, created when it is complete")
    ] = None,
) -> None:
    """Dump a bucket to a file for `load`.

    Writes the live keys, or with --history every entry, as a consistent snapshot at one revision, the snapshot
    revision. Later writes are not included. The format is ndjson: a header, one entry per line, and a trailer with a
    count and a hash.

    If entries are overwritten before they are read and the history no longer holds them, the snapshot is not
    consistent: the header has `"exact": false`, the error names the keys, and the exit code is 7. Entries that expire
    while they are read are omitted.

    --as-of dumps the keys of an earlier state, or fails (3) and names the keys whose state the bucket no longer holds.

    The dump is first written to a temporary file (see TMPDIR), because its header depends on the result, and copied to
    standard output when it is complete. --to replaces an existing file; only you can read the new one.

    NAME@REF dumps a repository at a ref; its snapshot revision is a commit.
    """
    chosen = check_filters(filters)
    if history and as_of is not None:
        raise UsageError("`--history` and `--as-of` cannot be combined")
    if to is None and session.options.output not in (None, "ndjson"):
        raise UsageError(
            f"A dump is ndjson, not {session.options.output}", hint="Use `kvctl get BUCKET '>'` for other formats"
        )
    target = parse_target(bucket)
    target.refuse(history=history, as_of=as_of)
    await _write_out(session, bucket, to, await target.dumping(session, chosen, history=history, as_of=as_of))


async def _write_out(
    session: Session, bucket: str, to: Path | None, write: Callable[[BinaryIO], Awaitable["dumper.Dumped"]]
) -> None:
    """Write the dump to a file, or to standard output once it is complete."""
    if to is None:
        with _aside() as file:
            made = await write(file)
            file.seek(0)
            await session.stream_bytes(_blocks(session, file))
    else:
        with _appearing(to) as file:
            made = await write(file)
        _report(session, bucket, to, made)
    _require_exact(session, bucket, made)


@contextmanager
def _aside() -> Iterator[BinaryIO]:
    """Open an unnamed temporary file."""
    try:
        with tempfile.TemporaryFile(buffering=BLOCK) as file:
            yield cast(BinaryIO, file)
    except OSError as error:
        raise KvctlError(
            f"Cannot write to the temporary directory `{tempfile.gettempdir()}`: {error.strerror}",
            hint="Use `--to FILE`, or set TMPDIR to another directory",
        ) from None


@contextmanager
def _appearing(path: Path) -> Iterator[BinaryIO]:
    """Open a file that gets its name when it is complete and synced to disk."""
    if path.exists() and not path.is_file():
        raise UsageError(f"`{path}` is not a regular file", hint="Omit `--to` to write to standard output")
    try:
        with atomic_file.replacing(path, buffering=BLOCK) as file:
            yield file
    except OSError as error:
        raise KvctlError(f"Cannot write the dump to `{path}`: {error.strerror}") from None


async def _blocks(session: Session, file: BinaryIO) -> AsyncIterator[bytes]:
    while block := file.read(BLOCK):
        if session.terminal.is_terminal:
            block += file.readline()
            block = escapes.escape_unicode(block.decode()).encode()
        yield block


def _report(session: Session, bucket: str, to: Path, made: "dumper.Dumped") -> None:
    row = {"bucket": bucket, "file": str(to), "entries": made.entries, "cut": made.cut, "exact": made.exact}
    if session.options.output:
        session.show(document(row, *map(Column, row), name="file"))
    else:
        cut = f"revision {made.cut}" if isinstance(made.cut, int) else f"commit `{made.cut[:12]}`"
        session.note(f"Dumped {counted(made.entries, 'entry')} of `{bucket}` to `{to}`, as of {cut}")


def _require_exact(session: Session, bucket: str, made: "dumper.Dumped") -> None:
    if made.caveat:
        session.warn(made.caveat)
    if made.exact:
        return
    keys = quoted(made.lost, None if session.options.verbose else NAMED)
    removed = f"{made.vanished} entries were removed" if made.vanished else ""
    overwritten = f"entries of these keys may have been overwritten: {keys}" if made.lost else ""
    raise PartlyDone(
        f"Inconsistent dump: while it was read, {' and '.join(filter(None, (removed, overwritten)))}",
        hint=f"Dump again during fewer writes, or keep more history: `kvctl bucket edit {bucket} --history N`",
    )
