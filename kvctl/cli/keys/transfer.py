"""Keys in files: `kvctl dump` and `kvctl load`."""

import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, BinaryIO, cast

from kvctl import atomic_file
from kvctl.cli.app.command import command
from kvctl.cli.app.options import DryRun, Filters, Force, KeyedName, argument, flag, one_of, option
from kvctl.cli.app.session import Session
from kvctl.cli.flows import require_current
from kvctl.cli.keys.arguments import AsOf, check_filters, open_bucket
from kvctl.cli.keys.bucket_target import Target, parse_target
from kvctl.cli.records import DUMPED, LOADED
from kvctl.errors import KvctlError, PartlyDone, UsageError
from kvctl.kv.bulk import bulk_writer, checkpoint, dump_file, input_file, loader
from kvctl.kv.bulk import rows as load_rows
from kvctl.kv.names import is_ref
from kvctl.phrases import counted, quoted
from kvctl.render import escapes
from kvctl.render.fields import columns
from kvctl.render.view import Column, document, elapsed_text
from kvctl.topology.hazards import hazards

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
    forces=lambda: (hazards.LAGGING_REPLICA,),
)
async def dump(
    session: Session,
    bucket: KeyedName,
    filters: Filters = None,
    history: Annotated[bool, flag("--history", "Dump all entries with their operations, oldest first")] = False,
    as_of: AsOf = None,
    to: Annotated[Path | None, option("--to", "FILE", "Output file, created when it is complete")] = None,
    force: Force = None,
) -> None:
    """Dump a bucket to a file for `load`.

    Writes the live keys, or with --history every entry, as a consistent snapshot at one revision, the snapshot
    revision. Later writes are not included. The format is ndjson: a header, one entry per line, and a trailer with a
    count and a hash.

    If entries are overwritten before they are read and the history no longer holds them, the snapshot is not
    consistent: the header has `"exact": false`, the error names the keys, and the exit code is 7. Entries that expire
    while they are read are omitted.

    --as-of dumps the keys of an earlier state, or fails (3) and names the keys whose state the bucket no longer holds.
    If entries may have been removed without a trace, the dump is not exact (7).

    The dump is first written to a temporary file (see TMPDIR), because its header depends on the result, and copied to
    standard output when it is complete. --to replaces an existing file; only you can read the new one.

    A mirror or an aggregate that lacks entries of its origins after five seconds is not dumped without --force
    lagging-replica.

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
    target.refuse(history=history, as_of=as_of, force=force)
    if not is_ref(bucket):
        binding = await (await open_bucket(session, bucket)).locate()
        await require_current(session, binding.api, binding.info, force)
    await _write_out(session, bucket, to, await target.dumping(session, chosen, history=history, as_of=as_of))


async def _write_out(
    session: Session, bucket: str, to: Path | None, write: Callable[[BinaryIO], Awaitable["dump_file.DumpSummary"]]
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


def _report(session: Session, bucket: str, to: Path, made: "dump_file.DumpSummary") -> None:
    row = {"bucket": bucket, "file": str(to), "entries": made.entries, "cut": made.cut, "exact": made.exact}
    if session.options.output:
        session.show(document(row, *map(Column, row), name="file"))
    else:
        cut = f"revision {made.cut}" if isinstance(made.cut, int) else f"commit `{made.cut[:12]}`"
        session.note(f"Dumped {counted(made.entries, 'entry')} of `{bucket}` to `{to}`, as of {cut}")


def _require_exact(session: Session, bucket: str, made: "dump_file.DumpSummary") -> None:
    if made.exact:
        return
    if made.caveat:
        raise PartlyDone(f"Inexact dump: {made.caveat[0].lower()}{made.caveat[1:]}")
    keys = quoted(made.lost, None if session.options.verbose else NAMED)
    removed = f"{made.vanished} entries were removed" if made.vanished else ""
    overwritten = f"entries of these keys may have been overwritten: {keys}" if made.lost else ""
    raise PartlyDone(
        f"Inconsistent dump: while it was read, {' and '.join(filter(None, (removed, overwritten)))}",
        hint=f"Dump again during fewer writes, or keep more history: `kvctl bucket edit {bucket} --history N`",
    )


SHOWN = 20
"""Maximum number of rejected rows to name; `-v` names all."""


Input = Annotated[str, argument("FILE|-", "File with rows or a dump, `-` for standard input")]
Format = Annotated[str | None, option("--format", "FORMAT", "`ndjson`, `csv` or `tsv`", one_of("ndjson", "csv", "tsv"))]
KeyColumn = Annotated[str | None, option("--key", "COL", "Column or field of the key [default: key]")]
ValueColumn = Annotated[str | None, option("--value", "COL", "Column or field of the value [default: value]")]
CreateOnly = Annotated[bool, flag("--create-only", "Skip keys that exist")]
IfDifferent = Annotated[bool, flag("--if-different", "Write only values that differ from the leader's")]
Strict = Annotated[bool, flag("--strict", "Validate all rows first, and write nothing if one is invalid")]
Resume = Annotated[bool, flag("--resume", "Resume an interrupted load of FILE")]


@command(
    "load",
    examples=[
        "kvctl load orders orders.ndjson",
        "kvctl load stock stock.csv --key sku --value count --if-different",
        "kvctl dump orders --history | kvctl load orders-copy -",
        "kvctl load config@main app.ndjson --if-different",
    ],
    see=["dump", "bucket copy", "help formats", "help scale"],
    prints=(LOADED,),
    forces=lambda: ("broken-dump", "shorter-history"),
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

    A dump is recognized by its header and verified first: a damaged dump is refused (4) before anything is written,
    unless --force broken-dump is given. Entries are written unchanged and in order, including deletions, purges and
    non-conforming keys, with new revisions and times. A dump with history needs a bucket that keeps as much history, or
    --force shorter-history.

    Rows are ndjson objects with `key` and `value`, and optionally `encoding` (`base64`) and `ttl`, or csv or tsv with a
    heading line, by the extension of FILE. Rows that cannot be written are reported with their line, and the exit code
    is 7; with --strict nothing is written (2). Prints the numbers of written, unchanged and rejected rows. In a bucket
    with history, the previous value of a key reappears when the ttl of its row ends.

    --resume continues an interrupted load, even after a crash: a file FILE.kvctl-progress-* beside FILE records the
    position. Rows that were in flight are looked up in the bucket. The position belongs to the file, the bucket's
    stream and the options: if they differ, or no position is recorded, --resume is refused (4). A concurrent load of
    the same file into the same bucket is refused (4). For standard input, use --if-different to complete a load.

    A bucket that another tool created may delete its oldest entries when it is full. A warning then names the revision
    below which it did so, and the number of keys of this load among them (in JSON `evicted`).

    --if-different compares up to 1000 rows, then writes: what another client writes in between is overwritten.

    On a branch of a repository (NAME@BRANCH) rows are staged; rows with a ttl or headers are rejected. All rows appear
    on the branch together when the load ends, and none if it is interrupted. With --create-only each row appears when
    it is written.
    """
    target = parse_target(bucket)
    target.check_writable(session, dry_run=dry_run)
    forced = force or []
    if create_only and if_different:
        raise UsageError("`--create-only` and `--if-different` cannot be combined")
    if resume and not _is_regular(file):
        raise UsageError(
            "`--resume` needs a file, not standard input", hint="Use `--if-different` to write only missing rows"
        )
    if resume and not target.resumable:
        session.warn("A load on a branch always starts at the first row")
    with session.terminal.blocking():
        source = input_file.open_input(
            "standard input" if file == "-" else file, _opened(file),
            format=format, key=key, value=value, twice=strict, forced="broken-dump" in forced,
        )  # fmt: skip
    modes = load_rows.Mode
    options = loader.LoadOptions(
        mode=modes.CREATE_ONLY if create_only else modes.IF_DIFFERENT if if_different else modes.PUT,
        strict=strict, resume=resume, dry_run=dry_run, shorter_history="shorter-history" in forced,
        progress=checkpoint.path_for(file) if target.resumable and _is_regular(file) else None,
        anew=lambda: session.note(f"Restarting the interrupted load of `{file}`; use `--resume` to continue it"),
    )  # fmt: skip
    begun = time.monotonic()
    loaded = await _load(session, target, source, options)
    _show(session, loaded, time.monotonic() - begun, dry_run=dry_run)
    if loaded.rejected and not dry_run:
        rows = f"{counted(loaded.rejected, 'row')} {'was' if loaded.rejected == 1 else 'were'}"
        raise PartlyDone(f"{rows} rejected", hint="The other rows were written; fix these and load them again")


def _show(session: Session, loaded: "bulk_writer.RowCounts", seconds: float, *, dry_run: bool) -> None:
    """Print the counts; in words with time and rate on a terminal, and in a pipe on stderr, as a log has no others."""
    row: dict[str, int] = {name: getattr(loaded, name) for name in LOADED.columns}
    counts = ", ".join(f"{count:,} {what}" for what, count in row.items())
    rate = f", {sum(row.values()) / seconds:,.0f} rows/s" if seconds >= 1 else ""
    words = f"Dry run: {counts}" if dry_run else f"{counts} in {elapsed_text(seconds)}{rate}"
    if session.options.output is None and session.terminal.is_terminal:
        session.write(f"{words}\n".encode())
    else:
        row |= {"evicted": loaded.evicted} if loaded.evicted_below else {}
        session.show(document(row, *columns("written unchanged rejected"), tsv=LOADED.columns, name="written"))
    if session.options.output is None and not session.terminal.is_terminal:
        session.note(words, always=True)
    if loaded.evicted_below:
        keys = f", {counted(loaded.evicted, 'key')} of this load among them" if loaded.evicted else ""
        below = f"those below revision {loaded.evicted_below:,}"
        session.warn(f"The bucket is full and deletes its oldest entries: {below} were deleted{keys}")
    if loaded.presumed:
        rows = f"{counted(loaded.presumed, 'written row')} {'was' if loaded.presumed == 1 else 'were'}"
        session.note(f"{rows} replaced by later rows; the bucket does not show if they were stored before", always=True)


async def _load(
    session: Session, target: Target, source: "input_file.LoadInput", options: "loader.LoadOptions"
) -> "bulk_writer.RowCounts":
    """Load with a progress bar, and report rejected rows and how to resume."""
    rejections = _Rejections(session)
    try:
        with session.progress(f"Loading {target.text}", source.size, unit="bytes") as bar:
            reporting = replace(options, rejected=rejections.add, advance=bar.advance, advance_rows=bar.advance_rows)
            return await target.load(session, source, reporting)
    except BaseException:
        if session.terminal.interruption is not None:
            _explain_resuming(session, target, options)
        raise
    finally:
        rejections.finish()


class _Rejections:
    """Reporter that names the first rejected rows, with `-v` all of them."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._unnamed = 0
        self._named = 0

    def add(self, bad: "load_rows.BadRow") -> None:
        if self._named < SHOWN or self._session.options.verbose:
            self._named += 1
            self._session.warn(f"Line {bad.line}: {bad.reason}")
        else:
            self._unnamed += 1

    def finish(self) -> None:
        if self._unnamed:
            self._session.warn(f"{self._unnamed} more rows were rejected; `-v` names them all")


def _is_regular(file: str) -> bool:
    """Return True if the input may have a checkpoint; also for a missing file, which fails when it is opened."""
    return file != "-" and (os.path.isfile(file) or not os.path.exists(file))


def _opened(file: str) -> BinaryIO:
    if file == "-":
        if sys.stdin is None:
            raise UsageError("Standard input is closed")
        return cast(BinaryIO, sys.stdin.buffer)
    try:
        return open(file, "rb")  # stays open until the process ends
    except OSError as error:
        raise UsageError(f"Cannot read `{file}`: {error.strerror}") from None


def _explain_resuming(session: Session, target: Target, options: "loader.LoadOptions") -> None:
    if not target.resumable and options.mode is not load_rows.Mode.CREATE_ONLY:
        session.warn("Interrupted. A load on a branch stages all rows or none: run the command again")
    elif options.progress is not None and checkpoint.noted(options.progress):
        session.warn("Interrupted. Run the command again with `--resume` to continue")
    else:
        session.warn("Interrupted. Run the command again with `--if-different` to write the missing rows")
