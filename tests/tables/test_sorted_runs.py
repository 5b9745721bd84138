"""Sorting in bounded memory: any records, any size of runs and blocks, against `sorted`."""

import os

from hypothesis import given
from hypothesis import strategies as st

from kvctl.tables import scan
from kvctl.tables.scan import SortedRuns, merged

RUNS = st.lists(st.lists(st.lists(st.binary(max_size=3), min_size=1), max_size=4), max_size=4)


@given(RUNS)
def test_merged_runs_are_sorted_and_complete(runs):
    flat = [sorted(record for block in run for record in block) for run in runs]
    cut = [[run[at : at + 2] for at in range(0, len(run), 2)] for run in flat]
    found = [record for block in merged([iter(run) for run in cut]) for record in block]
    assert found == sorted(record for run in flat for record in run)


def test_records_beyond_the_memory_are_sorted_in_a_file(monkeypatch):
    monkeypatch.setattr(scan, "RUN_BYTES", 10_000)
    monkeypatch.setattr(scan, "BLOCK_RECORDS", 7)
    batches = [[os.urandom(5) for _ in range(50)] for _ in range(20)]
    with SortedRuns() as runs:
        for batch in batches:
            runs.add(batch)
        assert runs._file is not None
        assert len(runs._runs) > 3
        assert len(runs._records) < 200
        found = [record for block in runs.blocks() for record in block]
    assert found == sorted(record for batch in batches for record in batch)
    assert runs._file.closed


def test_few_records_need_no_file():
    with SortedRuns() as runs:
        runs.add([b"b", b"a"])
        assert runs._file is None
        assert list(runs.blocks()) == [[b"a", b"b"]]
    with SortedRuns() as runs:
        assert list(runs.blocks()) == []
