"""Rejected rows, stored in a folder: a Parquet file per task, with their columns and the cause.

A task's file has a unique name, the same on every attempt, and is written atomically.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from kvctl import atomic_file
from kvctl.errors import KvctlError
from kvctl.pipeline.write.arrow_rows import RowChunk

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import fs

CAUSE = "cause"


class DeadLetters:
    """File of one task, started with the first row; a context manager that leaves nothing if the task fails."""

    def __init__(self, folder: str, task: str) -> None:
        self._folder = folder
        self._task = task
        self._files: fs.FileSystem
        self._writer: Any = None
        self._open_file = ExitStack()

    def __enter__(self) -> DeadLetters:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is None:
            if kind is None:
                self._remove_former()
            return
        try:
            self._open_file.__exit__(kind, error, trace)
        except OSError as failure:
            raise self._failed(failure) from None

    def add(self, chunk: RowChunk, causes: dict[int, str]) -> None:
        """Add these rows of a batch. Raises KvctlError if the folder is not writable."""
        import pyarrow as pa

        places = sorted(causes)
        rows = chunk.batch.take(pa.array(places, pa.int32()))
        table = pa.Table.from_batches([rows]).append_column(CAUSE, pa.array([causes[at] for at in places], pa.string()))
        try:
            if self._writer is None:
                self._begin(table.schema)
            self._writer.write_table(table)
        except OSError as error:
            raise self._failed(error) from None

    def _begin(self, schema: pa.Schema) -> None:
        from pyarrow import parquet

        self._open()
        self._files.create_dir(self._root, recursive=True)
        with ExitStack() as stack:
            file = stack.enter_context(self._replacing())
            self._writer = stack.enter_context(parquet.ParquetWriter(file, schema))
            self._open_file = stack.pop_all()

    @contextmanager
    def _replacing(self) -> Iterator[Any]:
        """Open the file under a random name; it gets its own name when the block ends."""
        from pyarrow import fs

        if isinstance(self._files, fs.LocalFileSystem):
            with atomic_file.replacing(Path(self._path), mode=atomic_file.PUBLIC) as local:
                yield local
            return
        partial = f"{self._root}/_{self._task}.{secrets.token_hex(4)}{atomic_file.PARTIAL}"
        try:
            with self._files.open_output_stream(partial) as remote:
                yield remote
            self._files.move(partial, self._path)
        except BaseException:
            with suppress(OSError):
                self._files.delete_file(partial)
            raise

    def _open(self) -> None:
        from pyarrow import fs

        local = "://" not in self._folder
        self._files, self._root = fs.FileSystem.from_uri(os.path.abspath(self._folder) if local else self._folder)
        self._path = f"{self._root}/{self._task}.parquet"

    def _remove_former(self) -> None:
        """Remove the file of an earlier attempt if no row failed."""
        with suppress(OSError):
            self._open()
            self._files.delete_file(self._path)

    def _failed(self, error: OSError) -> KvctlError:
        return KvctlError(
            f"Could not store rejected rows in `{self._folder}`: {error}",
            hint="Set option `deadLetter` to a folder that all executors can write",
        )
