"""Sorting of any number of records in bounded memory: sorted runs in a temporary file, merged block by block."""

from __future__ import annotations

import marshal
import tempfile
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import IO, Self

RUN_BYTES = 64 << 20
"""Bytes of records that are held in memory."""
BLOCK_RECORDS, BLOCK_BYTES = 4000, 512 << 10
"""Records, and bytes of them, that are written and read together: one block of each run is held in memory."""
RECORD_OVERHEAD = 64
"""Bytes that a record takes in memory beside its own."""


class SortedRuns:
    """Records in the order of their bytes; a context manager that removes its file."""

    def __init__(self) -> None:
        self._records: list[bytes] = []
        self._size = 0
        self._runs: list[list[int]] = []
        """Positions of the blocks of each run."""
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, records: list[bytes]) -> None:
        """Add records; if they do not fit into memory, write a sorted run of all so far."""
        self._records += records
        self._size += sum(map(len, records)) + len(records) * RECORD_OVERHEAD
        if self._size > RUN_BYTES:
            self._spill()

    def blocks(self) -> Iterator[list[bytes]]:
        """Return all records in order, some at a time; called once, after the last `add`."""
        self._records.sort()
        runs = [self._read(positions) for positions in self._runs]
        return merged([*runs, _blocks(self._records)])

    def _spill(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="kvctl-")  # noqa: SIM115 - closed by `__exit__`
        self._records.sort()
        positions = []
        for block in _blocks(self._records):
            positions.append(self._file.tell())
            marshal.dump(block, self._file)
        self._runs.append(positions)
        self._records, self._size = [], 0

    def _read(self, positions: list[int]) -> Iterator[list[bytes]]:
        assert self._file is not None
        for position in positions:
            self._file.seek(position)
            yield marshal.load(self._file)


def merged(runs: Iterable[Iterator[list[bytes]]]) -> Iterator[list[bytes]]:
    """Merge sorted runs of sorted blocks. Each step takes what is below the first end of a block, and sorts that."""
    heads = [(run, block) for run in runs for block in (next(run, []),) if block]
    while heads:
        bound = min(block[-1] for _, block in heads)
        taken: list[bytes] = []
        left = []
        for run, block in heads:
            cut = bisect_right(block, bound)
            taken += block[:cut]
            block = block[cut:] or next(run, [])
            if block:
                left.append((run, block))
        heads = left
        taken.sort()
        yield taken


def _blocks(records: list[bytes]) -> Iterator[list[bytes]]:
    start = size = 0
    for at, record in enumerate(records, 1):
        size += len(record)
        if size >= BLOCK_BYTES or at - start == BLOCK_RECORDS:
            yield records[start:at]
            start, size = at, 0
    if start < len(records):
        yield records[start:]
