"""Rows that cannot be written, kept in a folder: a Parquet file a task, with their columns and the cause.

A task's file has a name of its own, the same on every attempt, and is there as a whole or not at all.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kvctl.errors import KvctlError
from kvctl.pipeline.rows import Chunk

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import fs

CAUSE = "cause"


class DeadLetters:
    """The file of one task, begun with the first row; a context manager that leaves nothing of a task that failed."""

    def __init__(self, folder: str, task: str) -> None:
        self.name: str | None = None
        """The file's, once it is there."""
        self._folder = folder
        self._task = task
        self._files: fs.FileSystem
        self._writer: Any = None

    def __enter__(self) -> DeadLetters:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._writer is None:
            if kind is None:
                self._remove_former()
            return
        try:
            self._writer.close()
            if kind is None:
                self._files.move(self._partial, self._path)
                self.name = f"{self._task}.parquet"
        except OSError as error:
            raise self._failed(error) from None
        finally:
            if kind is not None or self.name is None:
                with suppress(OSError):
                    self._files.delete_file(self._partial)

    def add(self, chunk: Chunk, causes: dict[int, str]) -> None:
        """Keep these rows of a batch. Raises KvctlError where the folder cannot be written."""
        import pyarrow as pa

        assert chunk.batch is not None
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
        self._writer = parquet.ParquetWriter(self._partial, schema, filesystem=self._files)

    def _open(self) -> None:
        from pyarrow import fs

        local = "://" not in self._folder
        self._files, self._root = fs.FileSystem.from_uri(os.path.abspath(self._folder) if local else self._folder)
        self._path = f"{self._root}/{self._task}.parquet"
        self._partial = f"{self._root}/_{self._task}.{os.getpid()}.part"

    def _remove_former(self) -> None:
        """No row failed: nor may those of a former attempt seem to have."""
        with suppress(OSError):
            self._open()
            self._files.delete_file(self._path)

    def _failed(self, error: OSError) -> KvctlError:
        return KvctlError(
            f"The rows that cannot be written cannot be kept in `{self._folder}`: {error}",
            hint="Option `deadLetter` is a folder that all executors can write",
        )
