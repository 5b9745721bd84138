"""Files of rejected rows."""

import os
from contextlib import suppress

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kvctl.errors import KvctlError, PartlyDone
from kvctl.kv.bulk.bulk_writer import RowCounts
from kvctl.pipeline.tables.storage import TablePlace
from kvctl.pipeline.write.arrow_rows import RowChunk
from kvctl.pipeline.write.write_task import TaskResult, dead_letters
from kvctl.pipeline.write.writer import WriteSummary


def chunk(*keys: str) -> RowChunk:
    """A batch of rows with these keys."""
    batch = pa.record_batch({"key": pa.array(keys), "value": pa.array([b"v"] * len(keys))})
    return RowChunk(batch, 0, list(keys), [b"v"] * len(keys), None, None)


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_rejected_rows_are_a_file_when_the_task_ends(tmp_path, scheme):
    folder = tmp_path / "dead"
    with dead_letters(TablePlace.parse(f"{scheme}{folder}"), "job.0") as add:
        add(chunk("a", "b", "c"), {0: "first", 2: "last"})
        add(chunk("d"), {0: "more"})
        assert not folder.exists()
    assert os.listdir(folder) == ["job.0.parquet"]
    assert pq.read_table(folder / "job.0.parquet").to_pydict() == {
        "key": ["a", "c", "d"],
        "value": [b"v"] * 3,
        "cause": ["first", "last", "more"],
    }


def test_rejected_rows_of_a_failed_task_leave_no_file(tmp_path):
    with suppress(RuntimeError), dead_letters(TablePlace(str(tmp_path)), "job.0") as add:
        add(chunk("a"), {0: "cause"})
        raise RuntimeError
    assert os.listdir(tmp_path) == []


def test_rejected_rows_of_a_former_attempt_are_removed_by_one_without_any(tmp_path):
    place = TablePlace(str(tmp_path / "dead"))
    with dead_letters(place, "job.0") as add:
        add(chunk("a"), {0: "cause"})
    assert place.listing().keys() == {"job.0.parquet"}
    with dead_letters(place, "job.0"):
        pass
    assert place.listing() == {}


def test_rejected_rows_of_a_folder_that_cannot_be_made_are_an_error(tmp_path):
    (tmp_path / "file").touch()
    place = TablePlace(str(tmp_path / "file" / "dead"))
    with pytest.raises(KvctlError, match="Could not write"), dead_letters(place, "job.0") as add:
        add(chunk("a"), {0: "cause"})


def test_rejected_rows_that_only_their_worker_sees_are_an_error(tmp_path):
    place = TablePlace(str(tmp_path / "dead"))
    with dead_letters(place, "job.0") as add:
        add(chunk("a"), {0: "cause"})
    here = TaskResult("job", RowCounts(rejected=1), letters=(place, "job.0.parquet"))
    none = TaskResult("job", RowCounts(written=2), letters=(place, "job.1.parquet"))
    assert WriteSummary.of([here, none]).rejected == 1
    elsewhere = TaskResult("job", RowCounts(rejected=1), letters=(place, "job.2.parquet"))
    with pytest.raises(PartlyDone, match=f"`{tmp_path}/dead` does not have all of them"):
        WriteSummary.of([here, elsewhere])
