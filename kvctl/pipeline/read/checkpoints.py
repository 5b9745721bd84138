"""Checkpoint folder of a Spark streaming query: read, and repaired if a crash left it unusable.

    metadata            the query's id
    offsets/N           offset up to which batch N is planned
    commits/N           batch N is done

Spark's first write leaves a file with a dot before its name until it is complete. If it is killed there, it always
refuses the checkpoint, as it expects an empty one for a query without a batch
(STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY).
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvctl.errors import ConflictError, KvctlError
from kvctl.pipeline.read.offsets import Offset

OFFSETS, COMMITS, METADATA = "offsets", "commits", "metadata"
_UNFINISHED = re.compile(r"\..*\.(tmp|crc)\Z")
_MORE = ("sources", "state")
"""Subfolders of other kinds of queries."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Progress of a query."""

    query: str | None
    """Query id; None if no query has started."""
    planned: int
    """Number of batches started."""
    committed: int
    """Number of batches done."""
    offset: Offset | None
    """End of the last batch that is done."""


def read(folder: Path) -> Checkpoint:
    """Read the progress in a checkpoint. Raises ConflictError if it is not a checkpoint of a single nats-kv source."""
    try:
        query = _query(folder / METADATA)
        planned, committed = _batches(folder / OFFSETS), _batches(folder / COMMITS)
        offset = _offset(folder / OFFSETS / str(committed[-1])) if committed else None
        return Checkpoint(query, len(planned) and planned[-1] + 1, len(committed) and committed[-1] + 1, offset)
    except (ValueError, KeyError, TypeError, IndexError, FileNotFoundError) as error:
        raise ConflictError(
            f"`{folder}` is not a checkpoint of a stream of one bucket: {error!r}", hint="Choose another folder"
        ) from None
    except OSError as error:
        raise KvctlError(f"Could not read the checkpoint `{folder}`: {error.strerror}") from None


def recover(folder: Path) -> bool:
    """Empty a checkpoint whose query was killed in its very first write; return whether it was one.

    Nothing is lost: no batch had been planned. Any other checkpoint is left unchanged.
    """
    try:
        if not _killed_at_first(folder):
            return False
        for name in (OFFSETS, COMMITS, *_MORE):
            if (folder / name).is_dir():
                shutil.rmtree(folder / name)
        return True
    except OSError as error:
        raise KvctlError(f"Could not clear the checkpoint `{folder}`: {error.strerror}") from None


def _killed_at_first(folder: Path) -> bool:
    """Return whether there are only unfinished files, and at least one of them."""
    left = [*_names(folder / OFFSETS), *_names(folder / COMMITS)]
    others = [name for part in _MORE for name in _names(folder / part)]
    return bool(left) and not others and all(_UNFINISHED.match(name) for name in left)


def _names(folder: Path) -> list[str]:
    return os.listdir(folder) if folder.is_dir() else []


def _batches(folder: Path) -> list[int]:
    """Return the numbers of the batches recorded in a log, in order."""
    return sorted(int(name) for name in _whole(_names(folder)))


def _whole(names: Iterable[str]) -> Iterable[str]:
    return (name for name in names if name.isdecimal())


def _query(path: Path) -> str | None:
    return str(json.loads(path.read_bytes())["id"]) if path.is_file() else None


def _offset(path: Path) -> Offset:
    """Return the offset of the query's one source: after a line with the version and one of Spark's own."""
    _, _, *sources = path.read_text(encoding="utf-8").splitlines()
    document: dict[str, Any] = json.loads(sources[0])
    if len(sources) != 1:
        raise ValueError(f"{len(sources)} sources")
    return Offset.parse(document)
