"""Dump a bucket into a file that `load` reads."""

import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, cast

import typer

from kvctl import atomic_file
from kvctl.cli.app.command import command, group
from kvctl.cli.app.parameters import Filters, KeyedName
from kvctl.cli.app.session import Session
from kvctl.cli.keys.arguments import AsOf, check_filters, open_bucket
from kvctl.errors import KvctlError, PartlyDone, UsageError
from kvctl.render.view import Column, document

if TYPE_CHECKING:
    from kvctl.kv.dump.dumper import Dumped

app = group()

BLOCK = 1 << 20
NAMED = 100
"""Keys that an error names; `-v` names all."""


@command(
    app,
    "dump",
    examples=[
        "kvctl dump orders > orders.ndjson",
        "kvctl dump orders --history --to orders.ndjson",
        "kvctl dump orders 'NEW.>' | kvctl load orders-new -",
        "kvctl dump orders --as-of -1h --to orders-before.ndjson",
        "kvctl dump config@v1 --to config-v1.ndjson",
    ],
    see=["load", "bucket backup", "bucket copy", "help formats"],
)
async def dump(
    session: Session,
    bucket: KeyedName,
    filters: Filters = None,
    history: Annotated[bool, typer.Option("--history", help="Every entry, with operations, oldest first")] = False,
    as_of: AsOf = None,
    to: Annotated[
        Path | None, typer.Option("--to", metavar="FILE", help="Write into a file, which appears when it is complete")
    ] = None,
) -> None:
    """Dump a bucket into a file that `load` reads.

    Writes the living keys, or with --history every entry, as they are at one revision, the cut: what is written
    meanwhile is not in it. The form is ndjson: a header, an entry a line, and at the end a count and a hash.

    Where a writer overwrites what has not been read yet, and the bucket's history does not hold it any more, the dump
    is not of one exact cut: the header says `"exact": false`, the keys are named, and the command exits 7. What expires
    while it is read is left out.

    --as-of dumps the keys that lived at a moment of the past, or fails (3) and names what the bucket no longer holds.

    Standard output gets it when it is complete, and until then a temporary file (see TMPDIR) holds it: the header comes
    first and has to be true. --to replaces a file that exists; only you may read the new one.

    NAME@REF dumps a repository at a ref; the cut is a commit.
    """
    chosen = check_filters(filters)
    if history and as_of is not None:
        raise UsageError("`--history` and `--as-of` exclude each other")
    if to is None and session.options.output not in (None, "ndjson"):
        raise UsageError(
            f"A dump is ndjson, not {session.options.output}", hint="`kvctl get BUCKET '>'` shows entries in any format"
        )
    if "@" in bucket:
        from kvctl.cli.keys.at_ref import ref_rows, ref_transfer

        ref_rows.refuse(bucket, history=history, as_of=as_of)
        write_ref = await ref_transfer.dumping(session, bucket, chosen)
        await _write_out(session, bucket, to, write_ref)
        return
    source = await open_bucket(session, bucket)

    async def write(file: BinaryIO) -> "Dumped":
        from kvctl.kv.dump import dumper

        with session.progress(f"Dumping {bucket}") as progress:
            if as_of is not None:
                return await dumper.dump_past(source, as_of, file, chosen, advance=progress.advance)
            return await dumper.dump(
                source, file, chosen, history=history, advance=progress.advance, expecting=progress.expect
            )

    await _write_out(session, bucket, to, write)


async def _write_out(
    session: Session, bucket: str, to: Path | None, write: Callable[[BinaryIO], Awaitable["Dumped"]]
) -> None:
    """Where the dump goes: standard output, once it is complete, or a file."""
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
    """A temporary file without a name."""
    try:
        with tempfile.TemporaryFile(buffering=BLOCK) as file:
            yield cast(BinaryIO, file)
    except OSError as error:
        raise KvctlError(
            f"The dump does not go into the temporary directory `{tempfile.gettempdir()}`: {error.strerror}",
            hint="`--to FILE` needs none, `TMPDIR` names another one",
        ) from None


@contextmanager
def _appearing(path: Path) -> Iterator[BinaryIO]:
    """A file that has its name once it is complete and on the disk."""
    if path.exists() and not path.is_file():
        raise UsageError(f"`{path}` is no regular file", hint="Without `--to` the dump goes to standard output")
    try:
        with atomic_file.replacing(path, buffering=BLOCK) as file:
            yield file
    except OSError as error:
        raise KvctlError(f"The dump cannot be written to `{path}`: {error.strerror}") from None


async def _blocks(session: Session, file: BinaryIO) -> AsyncIterator[bytes]:
    from kvctl.render.escapes import escape_unicode

    while block := file.read(BLOCK):
        if session.terminal.is_terminal:
            block += file.readline()
            block = escape_unicode(block.decode()).encode()
        yield block


def _report(session: Session, bucket: str, to: Path, made: "Dumped") -> None:
    row = {"bucket": bucket, "file": str(to), "entries": made.entries, "cut": made.cut, "exact": made.exact}
    if session.options.output:
        session.show(document(row, *map(Column, row), name="file"))
    else:
        plural = "entry" if made.entries == 1 else "entries"
        cut = f"revision {made.cut}" if isinstance(made.cut, int) else f"commit `{made.cut[:12]}`"
        session.note(f"Dumped {made.entries} {plural} of `{bucket}` to `{to}`, as of {cut}")


def _require_exact(session: Session, bucket: str, made: "Dumped") -> None:
    if made.caveat:
        session.warn(made.caveat)
    if made.exact:
        return
    named = made.lost if session.options.verbose else made.lost[:NAMED]
    keys = ", ".join(f"`{key}`" for key in named) + (
        f" and {len(made.lost) - len(named)} more" if len(named) < len(made.lost) else ""
    )
    gone = f"{made.vanished} entries were removed" if made.vanished else ""
    overwritten = f"of these keys entries were, or may have been, overwritten: {keys}" if made.lost else ""
    raise PartlyDone(
        f"The dump is not of one exact cut: before they were read, {' and '.join(filter(None, (gone, overwritten)))}",
        hint=f"Dump again when there is less writing, or keep more: `kvctl bucket edit {bucket} --history N`",
    )
