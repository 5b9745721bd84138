"""Checkpoints of a load: the position of a load in a file beside its input, from which an interrupted one resumes.

Each target has its own file, `FILE.kvctl-progress-<tag>`, which stays locked while the load runs. A save writes
another file and locks it before renaming it, so that a kill leaves the old position or the new one.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from glob import escape
from pathlib import Path
from typing import Any, BinaryIO, cast

from kvctl import atomic_file
from kvctl.documents.record import check_types
from kvctl.errors import ConflictError, UsageError
from kvctl.jetstream.stream_info import StreamInfo
from kvctl.kv.bulk.bulk_writer import RowCounts
from kvctl.wire import MALFORMED

SUFFIX = ".kvctl-progress"
VERSION = 3
_GENERATED_NAME = re.compile(r"N[A-Z2-7]{55}\Z")
"""Generated name of an unnamed server, which changes at each start."""
SAVE_ROWS = 10_000
SAVE_BYTES = 8 << 20
"""Rows and bytes between saves of the position. No row further ahead of the saved position is sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Input and target of a load; a load resumes only the same task."""

    input: str
    """Size and hash of the file."""
    bucket: str
    stream: str
    server: str
    """Cluster or server that has the stream, if its name survives a restart."""
    created: str
    """Creation time of the target's stream: a recreated one has no rows of an earlier load."""
    mode: str

    @property
    def tag(self) -> str:
        """Short name of the target."""
        return hashlib.sha256(f"{self.server}\n{self.stream}\n{self.created}".encode()).hexdigest()[:8]


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Position in the input: rows up to `line` are done; later ones, if stored, are above `revision`."""

    line: int = 0
    until: int = 0
    """Last row that may have been sent."""
    revision: int = 0
    written: int = 0
    unchanged: int = 0
    rejected: int = 0
    presumed: int = 0
    series: str = ""
    """Prefix of the rows' identities."""
    most: int = 0
    """Size of the largest message: larger rows have no identity."""


def path_for(file: str) -> Path:
    """Return the common prefix of an input file's checkpoint files."""
    return Path(file + SUFFIX)


def noted(base: Path) -> list[Path]:
    """Return the checkpoint files of an input file, one for each target with an interrupted load."""
    with suppress(OSError):
        found = base.parent.glob(f"{escape(base.name)}-*")
        return sorted(path for path in found if path.suffix != atomic_file.PARTIAL and path.stat().st_size)
    return []


def identity(file: BinaryIO) -> str:
    """Return size and hash of an input. The file's position afterwards is undefined."""
    file.seek(0)
    digest = hashlib.file_digest(cast(Any, file), "blake2b")
    return f"{file.tell()}-{digest.hexdigest()[:32]}"


def task_of(info: StreamInfo, bucket: str, *, input: str, mode: str) -> Task:
    """Return the task of loading an input into the stream of this info."""
    cluster = info.get("cluster") or {}
    server = cluster.get("name") or cluster.get("leader") or ""
    return Task(
        input=input,
        bucket=bucket,
        stream=info["config"]["name"],
        server="" if _GENERATED_NAME.match(server) else server,
        created=info["created"],
        mode=mode,
    )


class ProgressFile:
    """Checkpoint file of one load into a target. A context manager that holds the lock."""

    def __init__(self, base: Path, task: Task) -> None:
        self.path = base.with_name(f"{base.name}-{task.tag}")
        self._base = base
        self._task = task
        self._lock = -1

    def __enter__(self) -> ProgressFile:
        """Lock it. Raises ConflictError while another process loads the same file into the same target."""
        with suppress(OSError):  # then it loads without checkpoints
            self._lock = self._locked()
            self._clear_away()
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock >= 0:
            if os.fstat(self._lock).st_size == 0:
                self.remove()  # nothing was saved
            os.close(self._lock)
            self._lock = -1

    @property
    def exists(self) -> bool:
        """Return True if a load into this target was interrupted."""
        return self._lock >= 0 and os.fstat(self._lock).st_size > 0

    def load(self, last_revision: int) -> Position:
        """Return the position of the interrupted load. Raises ConflictError if none of the same task exists.

        Also raises it if the stream ends, at its last revision, before the position. A stream in memory keeps its
        creation time when its servers restart, and a restored one has that of its backup, but neither has all rows.
        """
        if not self.exists:
            raise self._none()
        found = _read(self.path)
        if found is None:
            raise _refusal(f"The checkpoint file `{self.path}` cannot be read")
        task, position = found
        if task != self._task:
            raise _refusal(f"The interrupted load of this file was {_differences(task, self._task)}")
        if position.revision > last_revision:
            bucket = f"bucket `{self._task.bucket}`, which has lost rows since"
            raise _refusal(f"The interrupted load of this file had reached revision {position.revision} of {bucket}")
        return position

    def save(self, position: Position) -> None:
        """Replace the file. Raises OSError."""
        document = {"version": VERSION, "task": asdict(self._task), "position": asdict(position)}
        descriptor = -1
        try:
            with atomic_file.replacing(self.path) as file:
                _lock(file.fileno())
                descriptor = os.dup(file.fileno())  # keeps the lock
                file.write(json.dumps(document).encode())
        except BaseException:
            if descriptor >= 0:
                os.close(descriptor)
            raise
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = descriptor

    def remove(self) -> None:
        """Delete the checkpoint: the load is complete."""
        with suppress(OSError):
            self.path.unlink()

    def _locked(self) -> int:
        """Return the descriptor of the file under its name, locked. Raises ConflictError, OSError."""
        while True:
            try:
                descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            except OSError as error:
                if self.path.is_symlink():
                    raise UsageError(f"`{self.path}` is a symbolic link, which a load does not follow") from None
                raise error
            try:
                _lock(descriptor)
                if os.fstat(descriptor).st_ino == os.stat(self.path).st_ino:
                    return descriptor
            except BlockingIOError:
                os.close(descriptor)
                raise ConflictError(
                    f"Another process is loading the file into bucket `{self._task.bucket}`",
                    hint="Wait until that load ends",
                ) from None
            except FileNotFoundError:
                pass  # the other load has just ended
            os.close(descriptor)

    def _clear_away(self) -> None:
        """Remove leftovers of a kill during a save."""
        for path in self.path.parent.glob(f".{escape(self.path.name)}.*{atomic_file.PARTIAL}"):
            path.unlink()

    def _none(self) -> ConflictError:
        others = [found[0] for found in map(_read, noted(self._base)) if found is not None]
        closest = min(others, key=lambda task: len(_differing(task, self._task)), default=None)
        if closest is None:
            return _refusal(f"No interrupted load of this file into bucket `{self._task.bucket}` was found")
        return _refusal(f"The interrupted load of this file was {_differences(closest, self._task)}")


def _lock(descriptor: int) -> None:
    """Lock the file for this process. Raises BlockingIOError. Some file systems have no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return


def _read(path: Path) -> tuple[Task, Position] | None:
    """Parse the file; None if it cannot be read. Raises ConflictError for another version."""
    try:
        document: dict[str, Any] = json.loads(path.read_bytes())
        if document["version"] != VERSION:
            raise _refusal(f"`{path}` has version {document['version']}; this kvctl supports version {VERSION}")
        for name, declared in (("task", Task), ("position", Position)):
            check_types(document[name], declared)
        return Task(**document["task"]), Position(**document["position"])
    except (OSError, *MALFORMED):
        return None


def _differing(before: Task, now: Task) -> list[str]:
    return [name for name, value in asdict(before).items() if value != getattr(now, name)]


def _differences(before: Task, now: Task) -> str:
    """Return the differences, worded to follow `was`."""
    return ", and ".join(_worded(before, now))


def _worded(before: Task, now: Task) -> Iterator[str]:
    differing = _differing(before, now)
    if "input" in differing:
        yield "of another file, or the file has changed"
    if "bucket" in differing or "stream" in differing:
        yield f"into bucket `{before.bucket}`"
    if "server" in differing:
        yield f"on server `{before.server}`"
    elif "created" in differing and before.stream == now.stream:
        yield f"into a bucket `{before.bucket}` that was deleted since"
    if "mode" in differing:
        yield f"with other options: {before.mode}"


def _refusal(what: str) -> ConflictError:
    return ConflictError(
        what,
        hint="Load without `--resume` to start over at the first row and overwrite later changes, "
        "or with `--create-only` to keep existing keys",
    )


class SavePoints:
    """Position of a load in its checkpoint file. Without a file, nothing is saved."""

    def __init__(self, file: ProgressFile | None, start: Position) -> None:
        self._file = file
        self._position = start
        """Saved position: every stored row after its line is above its revision."""
        self.until = start.until
        """Last line that may be sent before the position is saved again."""
        self._bytes = 0
        """Bytes taken since the last save."""
        self._rejected: deque[int] = deque()
        """Lines of rejected rows above the saved position."""

    def reject(self, line: int) -> None:
        """Note that the row of this line is rejected."""
        self._rejected.append(line)

    def must_precede(self, line: int) -> bool:
        """Return True if the position has to be saved before rows up to this line are sent."""
        if line <= self.until:
            return False
        self.until = line + SAVE_ROWS
        return True

    def due_after(self, size: int) -> bool:
        """Return True if these bytes of input make a save due."""
        self._bytes += size
        return self._bytes >= SAVE_BYTES

    def advance(self, line: int, revision: int, counts: RowCounts) -> None:
        """Move the position to this line, below which all rows are done; later ones are above the revision."""
        later = sum(1 for rejected in self._rejected if rejected > line)
        self._rejected = deque(rejected for rejected in self._rejected if rejected > line)
        self._position = replace(
            self._position,
            line=line,
            revision=revision,
            written=counts.written,
            unchanged=counts.unchanged,
            rejected=counts.rejected - later,
            presumed=counts.presumed,
        )

    def save(self) -> None:
        """Write the file; if that fails, the load continues without."""
        self._bytes = 0
        if self._file is not None:
            with suppress(OSError):
                self._file.save(replace(self._position, until=self.until))

    def remove(self) -> None:
        """Delete the file: the load is complete."""
        if self._file is not None:
            self._file.remove()
