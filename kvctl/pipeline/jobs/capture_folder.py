"""Folder of a capture: a bucket's changes in Parquet by day, and the state that lists its files.

    _capture.json       progress of the capture, and the files of its last batch
    day=2026-01-31/00000000000000000001-00000000000000000850.parquet
    _staging/           files that are being written

A batch counts from the moment at which the state names its files. Only then do they leave `_staging`, one by one; the
next run completes an interrupted move. So a reader of all Parquet files below the folder sees every revision at most
once, and after the batch exactly once. The `_` keeps Spark and similar tools from reading what is not data, and staged
files are not named `.parquet` for readers that look everywhere.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from kvctl import atomic_file
from kvctl.atomic_file import flush_folder
from kvctl.errors import ConflictError, KvctlError, NotFoundError, StreamReplaced, UsageError

STATE = "_capture.json"
STAGING = "_staging"
VERSION = 1
MOVING = 1.0
"""Seconds for a live capture to move the files of its last batch."""
_KIND = "capture"
_NAME = re.compile(r"day=\d{4}-\d\d-\d\d/\d{20}-\d{20}\.parquet\Z")


@dataclass(frozen=True, slots=True)
class Piece:
    """One file: a run of revisions of one day."""

    staged: str
    """Name below `_staging`."""
    day: str
    first: int
    last: int
    rows: int
    bytes: int

    @property
    def name(self) -> str:
        """Name relative to the folder; no other piece can have it."""
        return f"day={self.day}/{self.first:020}-{self.last:020}.parquet"


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureState:
    """Progress of a capture."""

    bucket: str
    incarnation: str
    """Creation time of the bucket's stream, which identifies the stream instance: another one has other revisions."""
    config: Mapping[str, Any]
    """Stream configuration of the bucket."""
    forced: bool = False
    """True if it was forced to continue after lost changes, and so may lack some."""
    query: str | None = None
    """Query id in the checkpoint that the capture continues from."""
    revision: int = 0
    """Last revision captured."""
    rows: int = 0
    bytes: int = 0
    files: int = 0
    last: tuple[Piece, ...] = ()
    """Files of the last batch, which may still be in `_staging`."""


def encode(state: CaptureState) -> bytes:
    """Return the state as a file's content."""
    return json.dumps({"kvctl": _KIND, "version": VERSION, **asdict(state)}, indent=2).encode() + b"\n"


def decode(data: bytes, path: Path) -> CaptureState:
    """Read the state in a file. Raises ConflictError if it is damaged or has a newer version."""
    try:
        document = json.loads(data)
        version = document["version"] if document["kvctl"] == _KIND else 0
        if version > VERSION:
            raise ConflictError(
                f"The capture in `{path.parent}` has version {version}, but this kvctl supports {VERSION}",
                hint="Upgrade kvctl",
            )
        known = {field.name: document[field.name] for field in fields(CaptureState)}
        return CaptureState(**{**known, "last": tuple(Piece(**piece) for piece in known["last"])})
    except (ValueError, KeyError, TypeError) as error:
        how = {KeyError: f"it has no `{error.args[0]}`", TypeError: "it has another form"}.get(
            type(error), "it is not JSON"
        )
        raise ConflictError(
            f"`{path}` is not the state of a capture: {how}",
            hint="Capture into another folder, with another checkpoint",
        ) from None


class CaptureFolder:
    """One capture on disk. All methods raise KvctlError for errors of the file system."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.staging = path / STAGING

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Lock the folder for this process, creating it if needed. Raises ConflictError while another one captures."""
        with _explained(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConflictError(f"Another capture is writing into `{self.path}`") from None
            except OSError:
                pass  # no locks on this file system
            yield
        finally:
            os.close(handle)

    def state(self) -> CaptureState | None:
        """Return the progress; None for an empty folder. Raises ConflictError for a folder with other content."""
        path = self.path / STATE
        with _explained(self.path):
            if path.is_file():
                return decode(path.read_bytes(), path)
            if self.path.exists() and not self.path.is_dir():
                raise UsageError(f"`{self.path}` is not a folder")
            if self.path.is_dir() and any(not name.startswith(("_", ".")) for name in os.listdir(self.path)):
                raise ConflictError(
                    f"`{self.path}` has files that are not a capture", hint="Choose another folder or empty it"
                )
        return None

    def existing(self) -> CaptureState:
        """Return the progress. Raises NotFoundError without a capture."""
        state = self.state()
        if state is None:
            what = "does not contain a capture" if self.path.exists() else "does not exist"
            raise NotFoundError(f"`{self.path}` {what}", hint="`kvctl pipeline capture BUCKET --to PATH` creates one")
        return state

    def begun(self, bucket: str, incarnation: str, config: Mapping[str, Any], *, forced: bool = False) -> CaptureState:
        """Return the state to continue from, created if needed; `forced` allows lost changes.

        Raises ConflictError for a capture of another bucket, StreamReplaced for one of another stream instance.
        """
        found = self.state()
        if found is None:
            state = CaptureState(bucket=bucket, incarnation=incarnation, config=config, forced=forced)
        else:
            _check_same(found, bucket, incarnation, self.path)
            state = replace(found, config=config, forced=found.forced or forced)
        if state != found:
            self._store(state)
        self.settle(state)
        return state

    def settle(self, state: CaptureState) -> None:
        """Complete the state's last batch, and remove files of failed batches."""
        with _explained(self.path):
            self.staging.mkdir(exist_ok=True)
            moved = set()
            for piece in state.last:
                staged, target = self.staging / piece.staged, self.path / piece.name
                if staged.exists():
                    target.parent.mkdir(exist_ok=True)
                    os.replace(staged, target)
                    moved.add(target.parent)
            # Before the next state, which does not list these files as staged.
            for folder in [*sorted(moved), self.path] if moved else []:
                flush_folder(folder)
            for left in self.staging.iterdir():
                left.unlink()

    def publish(self, state: CaptureState, pieces: Sequence[Piece], query: str | None) -> CaptureState:
        """Add the pieces of a batch, which are newer than all before; with none, only record the query."""
        ordered = sorted(pieces, key=lambda piece: piece.first)
        if ordered:
            with _explained(self.path):
                flush_folder(self.staging)
        if not ordered and query == state.query:
            return state
        new = replace(
            state,
            query=query,
            revision=max([state.revision, *(piece.last for piece in ordered)]),
            rows=state.rows + sum(piece.rows for piece in ordered),
            bytes=state.bytes + sum(piece.bytes for piece in ordered),
            files=state.files + len(ordered),
            last=tuple(ordered) or state.last,
        )
        self._store(new)
        self.settle(new)
        return new

    def files(self, state: CaptureState) -> list[Path]:
        """Return the capture's files as of the state, including those that a killed capture left in `_staging`."""
        deadline = time.monotonic() + MOVING
        with _explained(self.path):
            while (pending := self._pending(state)) and time.monotonic() < deadline:
                time.sleep(MOVING / 20)
            found = sorted(path for path in self.path.glob("day=*/*.parquet") if self._owns(path, state))
            return found + pending

    def _pending(self, state: CaptureState) -> list[Path]:
        """Return files of the last batch that are still in `_staging`."""
        staged = [self.staging / piece.staged for piece in state.last]
        return [path for path in staged if path.exists()]

    def _owns(self, path: Path, state: CaptureState) -> bool:
        """Return whether the file belongs to the capture, and not to a batch after the state's."""
        return bool(_NAME.match(path.relative_to(self.path).as_posix())) and int(path.stem[21:]) <= state.revision

    def _store(self, state: CaptureState) -> None:
        """Replace the state atomically and durably."""
        with _explained(self.path):
            self.staging.mkdir(exist_ok=True)  # the next run removes leftovers of a kill from it
            atomic_file.replace(self.path / STATE, encode(state), mode=atomic_file.PUBLIC, beside=self.staging)
            flush_folder(self.path)


def _check_same(state: CaptureState, bucket: str, incarnation: str, path: Path) -> None:
    if state.bucket != bucket:
        raise ConflictError(f"`{path}` has a capture of bucket `{state.bucket}`", hint="Choose another folder")
    if state.incarnation != incarnation:
        raise StreamReplaced(
            f"`{path}` has a capture of the bucket `{bucket}` created at {state.incarnation}, up to revision "
            f"{state.revision}; it was recreated at {incarnation}",
            hint="Capture the new one into another folder, with another checkpoint",
        )


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise KvctlError(f"Could not write the capture in `{path}`: {error.strerror}") from None
