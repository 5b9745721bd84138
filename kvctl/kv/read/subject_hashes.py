"""Hashes of delivered subjects, to find out later which were not: in memory at first, and any number in a file."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Container, Iterable, Iterator
from math import inf
from typing import IO

HELD = 1 << 18
"""Hashes that are held in memory; each takes eight bytes, where a set of names would take a hundred."""


class SubjectHashes:
    """Hashes of subjects, repeated ones included. Where no file can be written, all stay in memory."""

    def __init__(self) -> None:
        self._held = array("q")
        self._limit: float = HELD
        self._file: IO[bytes] | None = None
        self._filed = 0

    def __len__(self) -> int:
        return self._filed + len(self._held)

    def add(self, subjects: Iterable[bytes]) -> None:
        """Add subjects, which are not kept themselves."""
        self._held.extend(map(hash, subjects))
        if len(self._held) >= self._limit:
            try:
                self._spill()
            except OSError:
                self._limit = inf

    def among(self, wanted: Container[int]) -> Counter[int]:
        """Count those that are among the wanted hashes. Raises OSError if the file cannot be read."""
        return Counter(value for block in self._blocks() for value in block if value in wanted)

    def all(self) -> set[int]:
        """Return all of them: some 60 bytes each. Raises OSError if the file cannot be read."""
        return {value for block in self._blocks() for value in block}

    def _spill(self) -> None:
        if self._file is None:
            import tempfile

            self._file = tempfile.TemporaryFile(prefix="kvctl-", buffering=0)  # noqa: SIM115 - as long as the object
        self._file.seek(self._filed * self._held.itemsize)
        block = memoryview(self._held).cast("B")
        while block:
            block = block[self._file.write(block) :]
        self._filed += len(self._held)
        self._held = array("q")

    def _blocks(self) -> Iterator[array[int]]:
        if self._file is not None:
            self._file.seek(0)
            for start in range(0, self._filed, HELD):
                block = array("q")
                block.fromfile(self._file, min(HELD, self._filed - start))
                yield block
        yield self._held
