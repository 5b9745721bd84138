"""Load rows or a dump into a bucket."""

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, cast

import typer

from kvctl.cli.app.command import command, group
from kvctl.cli.app.parameters import DryRun, Force, KeyedName
from kvctl.cli.app.session import Session
from kvctl.cli.keys.arguments import check_forced, check_writable, open_bucket
from kvctl.errors import PartlyDone, UsageError
from kvctl.kv.names import check_bucket
from kvctl.render.view import Column, document

if TYPE_CHECKING:
    from kvctl.kv.load.bulk_load import LoadOptions
    from kvctl.kv.load.input_file import LoadInput
    from kvctl.kv.load.loader import Loaded
    from kvctl.kv.load.rows import BadRow

app = group()

SHOWN = 20
"""Rejected rows that are named; `-v` names all."""


def _formats(incomplete: str) -> list[str]:
    return [name for name in ("ndjson", "csv", "tsv") if name.startswith(incomplete)]


Input = Annotated[str, typer.Argument(metavar="FILE|-", help="Rows or a dump; `-` reads standard input")]
Format = Annotated[
    str | None, typer.Option("--format", metavar="FORMAT", help="`ndjson`, `csv` or `tsv`", autocompletion=_formats)
]
KeyColumn = Annotated[
    str | None, typer.Option("--key", metavar="COL", help="Column or field that holds the key; else `key`")
]
ValueColumn = Annotated[
    str | None, typer.Option("--value", metavar="COL", help="Column or field that holds the value; else `value`")
]
CreateOnly = Annotated[bool, typer.Option("--create-only", help="Leave keys alone that exist")]
IfDifferent = Annotated[bool, typer.Option("--if-different", help="Write only what differs from what the leader holds")]
Strict = Annotated[bool, typer.Option("--strict", help="Check all rows first, and write nothing when one is bad")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on where an interrupted load of FILE stopped")]


@command(
    app,
    "load",
    examples=[
        "kvctl load orders orders.ndjson",
        "kvctl load stock stock.csv --key sku --value count --if-different",
        "kvctl dump orders --history | kvctl load orders-copy -",
        "kvctl load config@main app.ndjson --if-different",
    ],
    see=["dump", "bucket copy", "help formats", "help scale"],
)
async def load(
    session: Session,
    bucket: KeyedName,
    file: Input,
    format: Format = None,
    key: KeyColumn = None,
    value: ValueColumn = None,
    create_only: CreateOnly = False,
    if_different: IfDifferent = False,
    strict: Strict = False,
    resume: Resume = False,
    dry_run: DryRun = False,
    force: Force = None,
) -> None:
    """Load rows or a dump into a bucket.

    A dump is known by its header and verified first: a damaged one is refused (4) before anything is written, without
    --force broken-dump. What it holds is written as it was and in its order: deletions, purges and keys of other
    programs included. Revisions and times are the bucket's own. A dump of history needs a bucket that keeps as much, or
    --force shorter-history.

    Rows are ndjson objects with `key` and `value`, and optionally `encoding` (`base64`) and `ttl`; or lines of a table
    with a heading, csv or tsv by the extension of FILE. Rows that cannot be written are named with their line, and the
    command exits 7; --strict refuses them all (2). Prints how many rows were written, unchanged, and rejected. In a
    bucket with a history, what a key held before comes back when the ttl of its row is over.

    An interrupted load, even a killed one, goes on with --resume: a file FILE.kvctl-progress-*, beside FILE, notes how
    far it came. Rows that were being sent are looked up in the bucket. The position belongs to the file, the bucket's
    stream and the options: where they differ, or no position is recorded, --resume is refused (4). While a load runs,
    another one of the same file into the same bucket is refused (4). For standard input, --if-different completes a
    load.

    On a branch of a repository (NAME@BRANCH) rows are staged; those with a ttl or headers are rejected. An interrupted
    load begins at the first row again: what is staged again is no change.
    """
    _check_target(session, bucket, dry_run=dry_run)
    forced = force or []
    check_forced(forced, "broken-dump", "shorter-history")
    if create_only and if_different:
        raise UsageError("`--create-only` and `--if-different` exclude each other")
    if resume and not _is_regular(file):
        raise UsageError(
            "`--resume` needs a file, not standard input", hint="`--if-different` writes what is not there yet"
        )
    if resume and "@" in bucket:
        session.warn("A load on a branch begins at the first row again")
    from kvctl.kv.load import bulk_load, input_file
    from kvctl.kv.load.loader import Mode

    with session.terminal.blocking():
        source = input_file.open_input(
            "standard input" if file == "-" else file, _opened(file),
            format=format, key=key, value=value, twice=strict, forced="broken-dump" in forced,
        )  # fmt: skip
    options = bulk_load.LoadOptions(
        mode=Mode.CREATE_ONLY if create_only else Mode.IF_DIFFERENT if if_different else Mode.PUT,
        strict=strict, resume=resume, dry_run=dry_run, shorter_history="shorter-history" in forced,
        progress=None if "@" in bucket else _noted(file),
        anew=lambda: session.note(f"The interrupted load of `{file}` begins anew; `--resume` goes on with it"),
    )  # fmt: skip
    loaded = await _load(session, bucket, source, options)
    row = {"written": loaded.written, "unchanged": loaded.unchanged, "rejected": loaded.rejected}
    session.show(document(row, *map(Column, row), name="written"))
    if loaded.rejected and not dry_run:
        rows = "1 row was" if loaded.rejected == 1 else f"{loaded.rejected} rows were"
        raise PartlyDone(f"{rows} rejected", hint="The others are written; check these before loading them")


def _check_target(session: Session, bucket: str, *, dry_run: bool) -> None:
    """What can be found wrong before anything is read. Raises UsageError, ReadOnly."""
    if "@" in bucket:
        from kvctl.cli.repo.options import parse_branch

        parse_branch(bucket)
    elif dry_run:
        check_bucket(bucket)
    else:
        check_writable(session, bucket)


async def _load(session: Session, bucket: str, source: "LoadInput", options: "LoadOptions") -> "Loaded":
    """Load under a bar that shows it, and say what did not go well."""
    rejections = _Rejections(session)
    try:
        with session.progress(f"Loading {bucket}", source.size) as bar:
            told = replace(options, rejected=rejections.add, advance=bar.advance)
            return await (_load_ref if "@" in bucket else _load_bucket)(session, bucket, source, told)
    except BaseException:
        if session.terminal.interruption is not None:
            _say_how_to_go_on(session, options.progress)
        raise
    finally:
        rejections.finish()


async def _load_bucket(session: Session, bucket: str, source: "LoadInput", options: "LoadOptions") -> "Loaded":
    from kvctl.kv.load import bulk_load

    return await bulk_load.load(await open_bucket(session, bucket, write=not options.dry_run), source, options)


async def _load_ref(session: Session, place: str, source: "LoadInput", options: "LoadOptions") -> "Loaded":
    from kvctl.cli.keys.at_ref import ref_transfer

    return await ref_transfer.load(session, place, source, options)


def _noted(file: str) -> Path | None:
    """Where the position is noted: beside a file, nowhere for what is read from a pipe."""
    if not os.path.isfile(file):
        return None
    from kvctl.kv.load.checkpoint import path_for

    return path_for(file)


class _Rejections:
    """Names the first rejected rows, with `-v` all of them."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._unnamed = 0
        self._named = 0

    def add(self, bad: "BadRow") -> None:
        if self._named < SHOWN or self._session.options.verbose:
            self._named += 1
            self._session.warn(f"Line {bad.line}: {bad.reason}")
        else:
            self._unnamed += 1

    def finish(self) -> None:
        if self._unnamed:
            self._session.warn(f"{self._unnamed} more rows were rejected; `-v` names them all")


def _is_regular(file: str) -> bool:
    """Whether the input may have a position: also a file that is not there, about which opening it says more."""
    return file != "-" and (os.path.isfile(file) or not os.path.exists(file))


def _opened(file: str) -> BinaryIO:
    if file == "-":
        if sys.stdin is None:
            raise UsageError("Standard input is closed")
        return cast(BinaryIO, sys.stdin.buffer)
    try:
        return open(file, "rb")  # read until the process ends
    except OSError as error:
        raise UsageError(f"Cannot read `{file}`: {error.strerror}") from None


def _say_how_to_go_on(session: Session, base: Path | None) -> None:
    from kvctl.kv.load.checkpoint import noted

    if base is not None and noted(base):
        session.warn("Interrupted: the same with `--resume` goes on where it stopped")
    else:
        session.warn("Interrupted: the same with `--if-different` writes what is not there yet")
