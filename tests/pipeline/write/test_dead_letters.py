"""Files of rejected rows, beside links that somebody planted."""

import os
from contextlib import suppress

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kvctl.errors import KvctlError
from kvctl.pipeline.tables.storage import TablePlace
from kvctl.pipeline.write.arrow_rows import RowChunk
from kvctl.pipeline.write.write_task import DeadLetters


def chunk(*keys: str) -> RowChunk:
    """A batch of rows with these keys."""
    batch = pa.record_batch({"key": pa.array(keys), "value": pa.array([b"v"] * len(keys))})
    return RowChunk(batch, 0, list(keys), [b"v"] * len(keys), None, None)


@pytest.fixture
def victim(tmp_path):
    """A file that nothing may touch."""
    path = tmp_path / "victim"
    path.write_text("precious")
    return path


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_rejected_rows_are_written_past_a_link_under_the_former_temporary_name(tmp_path, victim, scheme):
    folder = tmp_path / "dead"
    folder.mkdir()
    planted = folder / f"_job.0.{os.getpid()}.part"
    planted.symlink_to(victim)
    with DeadLetters(TablePlace.parse(f"{scheme}{folder}"), "job.0") as letters:
        letters.add(chunk("a", "b", "c"), {0: "first", 2: "last"})
        letters.add(chunk("d"), {0: "more"})
        assert not list(folder.glob("*.parquet"))
    assert pq.read_table(folder / "job.0.parquet").to_pydict() == {
        "key": ["a", "c", "d"],
        "value": [b"v"] * 3,
        "cause": ["first", "last", "more"],
    }
    assert victim.read_text() == "precious"
    assert sorted(os.listdir(folder)) == sorted([planted.name, "job.0.parquet"])


def test_rejected_rows_of_a_failed_task_leave_no_file(tmp_path):
    letters = DeadLetters(TablePlace(str(tmp_path)), "job.0")
    with suppress(RuntimeError), letters:
        letters.add(chunk("a"), {0: "cause"})
        raise RuntimeError
    assert os.listdir(tmp_path) == []


def test_rejected_rows_of_a_former_attempt_are_removed_by_one_without_any(tmp_path):
    place = TablePlace(str(tmp_path / "dead"))
    with DeadLetters(place, "job.0") as letters:
        letters.add(chunk("a"), {0: "cause"})
    assert place.listing().keys() == {"job.0.parquet"}
    with DeadLetters(place, "job.0"):
        pass
    assert place.listing() == {}


def test_rejected_rows_of_a_folder_that_cannot_be_made_are_an_error(victim):
    place = TablePlace(f"{victim}/dead")
    with pytest.raises(KvctlError, match="Could not write"), DeadLetters(place, "job.0") as letters:
        letters.add(chunk("a"), {0: "cause"})
