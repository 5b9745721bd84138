"""`kvctl edit`: edit a value in an editor and write it back by compare-and-set."""

import asyncio
import os
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import kvctl
from kvctl.cli.app.command import command
from kvctl.cli.app.options import BucketName, KeyName
from kvctl.cli.app.session import Session
from kvctl.cli.keys.arguments import check_keys, open_bucket
from kvctl.cli.keys.output import revision_view
from kvctl.cli.records import WRITE
from kvctl.errors import KeyNotFound, KvctlError, UsageError, WrongRevision
from kvctl.kv import copied_entry


@command(
    "edit",
    examples=["kvctl edit config app.yaml", "EDITOR='code --wait' kvctl edit config app.yaml"],
    see=["update", "revert"],
    prints=(WRITE,),
)
async def edit(session: Session, bucket: BucketName, key: KeyName) -> None:
    """Edit a value in an editor.

    Opens $VISUAL or $EDITOR with the value in a file that only you can read. When the editor exits, the text is written
    if the key has not changed in the meantime, and the new revision is printed. Unchanged text is not written. A final
    newline that the editor added is removed.

    If the key has changed, the command exits 4 and the error names the file that keeps your text.
    """
    check_keys([key])
    program = _editor(os.environ)
    target = await open_bucket(session, bucket, write=True)
    entry = await _text_entry(target, key)
    directory = Path(tempfile.mkdtemp(prefix="kvctl-edit-"))
    name = key.replace("/", "_")[-64:].lstrip(".-")  # its extension tells editors the language
    file = directory / (name or "value")
    try:
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
            stream.write(entry.value)
        revision = await _edited(session, target, entry, program, file)
    except BaseException as error:
        if _holds_changes(file, entry.value):
            _point_to(session, error, bucket, key, file)
        else:
            shutil.rmtree(directory, ignore_errors=True)
        raise
    shutil.rmtree(directory, ignore_errors=True)
    session.show(revision_view(bucket, key, revision))


def _editor(environ: Mapping[str, str]) -> list[str]:
    """Return the editor's command. Raises UsageError if there is none."""
    chosen = environ.get("VISUAL") or environ.get("EDITOR") or next(filter(shutil.which, ("vi", "nano")), "")
    try:
        program = shlex.split(chosen)
    except ValueError as error:
        raise UsageError(f"Cannot parse the editor command `{chosen}`: {error}") from None
    if not program:
        raise UsageError("No editor is set", hint="Set one, as in `EDITOR=nano kvctl edit ...`")
    if shutil.which(program[0]) is None:
        raise UsageError(f"The editor `{program[0]}` is not installed", hint="Set $VISUAL or $EDITOR to another one")
    return program


async def _text_entry(bucket: "kvctl.Bucket", key: str) -> "kvctl.Entry":
    try:
        entry = await bucket.get(key, leader=True)
    except KeyNotFound as error:
        error.hint = f"Create it with `kvctl create {bucket.name} {key} VALUE`"
        raise
    try:
        entry.value.decode()
    except UnicodeDecodeError:
        raise KvctlError(
            f"The value of `{key}` is not text",
            hint=f"`kvctl get {bucket.name} {key} > FILE`, change it, then "
            f"`kvctl update {bucket.name} {key} --file FILE --if-revision {entry.revision}`",
        ) from None
    return entry


async def _edited(
    session: Session, bucket: "kvctl.Bucket", entry: "kvctl.Entry", program: list[str], file: Path
) -> int:
    """Run the editor and return the revision of its text, the old one if nothing changed."""
    await _run_editor(session, [*program, str(file)])
    text = _read(file, entry.value)
    if text == entry.value:
        session.note("Unchanged")
        return entry.revision
    return await bucket.update(entry.key, text, entry.revision, ttl=await copied_entry.remaining_ttl(bucket, entry))


async def _run_editor(session: Session, command: list[str]) -> None:
    # In `revision=$(kvctl edit ...)` the editor must draw on stderr.
    screen = None if session.terminal.is_terminal else sys.stderr
    with _interrupts_are_the_editors():
        process = await asyncio.create_subprocess_exec(*command, stdout=screen)
        code = await process.wait()
    if code:
        raise KvctlError(f"The editor `{command[0]}` exited with code {code}", hint="Nothing was written")


@contextmanager
def _interrupts_are_the_editors() -> Iterator[None]:
    """Ignore Ctrl-C within the block, because the editor receives and handles it."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _read(file: Path, original: bytes) -> bytes:
    """Read the edited text, without the newline that editors append to a last line."""
    try:
        text = file.read_bytes()
    except OSError as error:
        raise KvctlError(f"Cannot read the edited file: {error.strerror}", hint="Nothing was written") from None
    return text if original.endswith(b"\n") else text.removesuffix(b"\n")


def _holds_changes(file: Path, original: bytes) -> bool:
    try:
        return _read(file, original) != original
    except KvctlError:
        return False


def _point_to(session: Session, error: BaseException, bucket: str, key: str, file: Path) -> None:
    """Name the file with the text that could not be written, in the error's hint."""
    if isinstance(error, WrongRevision):
        error.hint = (
            f"Your text is in `{file}`; `kvctl get {bucket} {key}` shows what is there now, "
            f"`kvctl update {bucket} {key} --file {file} --if-revision {error.found or 0}` replaces it"
        )
    elif isinstance(error, KvctlError):
        error.hint = f"{error.hint}. Your text is in `{file}`" if error.hint else f"Your text is in `{file}`"
    else:
        session.warn(f"Your text is in `{file}`")
