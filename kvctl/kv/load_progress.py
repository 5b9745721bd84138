"""How far a load has come, in a file beside its input: what a killed one goes on from."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from kvctl.errors import ConflictError

SUFFIX = ".kvctl-progress"
VERSION = 1
_HEAD = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is loaded into what; a load goes on only with the same."""

    input: str
    """Size and hash of the file's beginning and end."""
    bucket: str
    created: str
    """When the target's stream was created: one that was made anew holds nothing of an earlier load."""
    mode: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Every row up to `line` is done; what comes after it has revisions above `revision`, if it is there."""

    line: int = 0
    revision: int = 0
    written: int = 0
    unchanged: int = 0
    rejected: int = 0


def path_for(file: str) -> Path:
    """The progress file of an input file."""
    return Path(file + SUFFIX)


def identity(file: BinaryIO) -> str:
    """What tells this input from another; the file stands anywhere afterwards."""
    size = file.seek(0, os.SEEK_END)
    digest = hashlib.sha256()
    for offset in (0, max(size - _HEAD, 0)):
        file.seek(offset)
        digest.update(file.read(_HEAD))
    return f"{size}-{digest.hexdigest()}"


class ProgressFile:
    """Keeps the position; every save replaces the file as a whole, so that a kill leaves the one or the other."""

    def __init__(self, path: Path, task: Task) -> None:
        self.path = path
        self._task = task

    def load(self) -> Position | None:
        """The position of the load that was interrupted; None when there was none. Raises ConflictError."""
        try:
            document: dict[str, Any] = json.loads(self.path.read_bytes())
            version = document.pop("version")
            if version > VERSION:
                raise ConflictError(f"`{self.path}` has version {version}, this kvctl knows {VERSION}")
            task, position = Task(**document["task"]), Position(**document["position"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            raise self._refusal("cannot be read") from None
        if task != self._task:
            differences = {
                "input": "of another file, or the file has changed",
                "bucket": f"into bucket `{task.bucket}`",
                "created": f"into a bucket `{task.bucket}` that was deleted since",
                "mode": f"with other options: {task.mode}",
            }
            names = (name for name in differences if getattr(task, name) != getattr(self._task, name))
            raise self._refusal(f"is of a load {differences[next(names)]}")
        return position

    def save(self, position: Position) -> None:
        """Replace the file. Raises OSError."""
        partial = self.path.with_name(f"{self.path.name}.part")
        document = {"version": VERSION, "task": asdict(self._task), "position": asdict(position)}
        partial.write_text(json.dumps(document))
        os.replace(partial, self.path)

    def remove(self) -> None:
        """The load is complete."""
        with suppress(OSError):
            self.path.unlink()

    def _refusal(self, how: str) -> ConflictError:
        return ConflictError(f"The progress file `{self.path}` {how}", hint="Without `--resume` the load begins anew")
