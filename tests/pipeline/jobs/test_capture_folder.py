"""Folder of a capture, without Spark: readers see consistent files after any kill."""

import json
import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from kvctl.errors import ConflictError, KvctlError, NotFoundError, StreamReplaced, UsageError
from kvctl.pipeline.jobs import capture_folder
from kvctl.pipeline.jobs.capture import write_pieces
from kvctl.pipeline.jobs.capture_folder import STATE, CaptureFolder, CaptureState, Piece
from kvctl.pipeline.jobs.compact import take_place

LIFE = "2026-01-31T12:00:00Z"
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def folder(tmp_path):
    """A capture that has started."""
    made = CaptureFolder(tmp_path / "capture")
    made.path.mkdir()
    made.begun("orders", LIFE, {"max_msgs_per_subject": 1})
    return made


def rows(revisions: Sequence[int], created: datetime = NEW_YEAR) -> pa.RecordBatch:
    """Rows of these revisions, an hour apart."""
    times = [created + timedelta(hours=number) for number in range(len(revisions))]
    return pa.record_batch(
        {
            "key": pa.array([f"k{revision}" for revision in revisions]),
            "revision": pa.array(revisions, pa.int64()),
            "created": pa.array(times, pa.timestamp("us", tz="UTC")),
        }
    )


def written(folder: CaptureFolder, *batches: pa.RecordBatch) -> list[Piece]:
    """Return the pieces that a task writes from the batches."""
    told = write_pieces(batches, str(folder.staging))
    return [Piece(**row) for batch in told for row in batch.to_pylist()]


def seen(folder: CaptureFolder) -> list[int]:
    """Return the revisions in all Parquet files below the folder, hidden ones included."""
    tables = [pq.ParquetFile(path).read(["revision"]) for path in sorted(folder.path.rglob("*.parquet"))]
    return [revision for table in tables for revision in table["revision"].to_pylist()]


class Disk:
    """Folders into which something was renamed, and that were not flushed since. The real calls go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.unsafe: set[Path] = set()
        self._fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self._flushed)
        for name in ("rename", "replace"):
            monkeypatch.setattr(os, name, partial(self._moved, getattr(os, name)))

    def _flushed(self, handle: int) -> None:
        self._fsync(handle)
        self.unsafe.discard(Path(os.readlink(f"/proc/self/fd/{handle}")))

    def _moved(self, real: Callable[..., None], one: Path, other: Path) -> None:
        if other.name in (STATE, "_manifest.json"):
            assert not self.unsafe, f"{other.name} promises what may be lost"
        real(one, other)
        self.unsafe.add(other.parent)


def test_every_folder_that_files_are_renamed_into_is_flushed(folder, tmp_path, monkeypatch):
    disk = Disk(monkeypatch)
    state = folder.publish(folder.existing(), written(folder, rows([1, 2, 3], NEW_YEAR - timedelta(hours=2))), "Q")
    assert not disk.unsafe
    folder.publish(state, written(folder, rows([4])), "Q")
    assert not disk.unsafe
    (tmp_path / "new").mkdir()
    take_place(tmp_path / "place", tmp_path / "new")
    assert not disk.unsafe


def test_batch_is_split_by_day_and_files_are_named_by_revision(folder):
    pieces = written(folder, rows([1, 2, 3], NEW_YEAR - timedelta(hours=2)), rows([7], NEW_YEAR))
    assert [(piece.name, piece.rows) for piece in pieces] == [
        ("day=2025-12-31/00000000000000000001-00000000000000000002.parquet", 2),
        ("day=2026-01-01/00000000000000000003-00000000000000000007.parquet", 2),
    ]
    state = folder.publish(folder.existing(), pieces, "query")
    assert (state.revision, state.rows, state.files, state.query) == (7, 4, 2, "query")
    assert seen(folder) == [1, 2, 3, 7]
    table = ds.dataset(folder.path, partitioning="hive").to_table()
    assert sorted(set(table["day"].to_pylist())) == ["2025-12-31", "2026-01-01"]


def test_repeated_day_gets_another_file(folder):
    pieces = written(folder, rows([1, 2], NEW_YEAR), rows([3], NEW_YEAR + timedelta(days=1)), rows([4], NEW_YEAR))
    assert [piece.day for piece in pieces] == ["2026-01-01", "2026-01-02", "2026-01-01"]
    folder.publish(folder.existing(), pieces, None)
    assert sorted(seen(folder)) == [1, 2, 3, 4]


def test_file_size_is_bounded(folder, monkeypatch):
    batches = [rows([2 * number + 1, 2 * number + 2]) for number in range(5)]
    monkeypatch.setattr("kvctl.pipeline.jobs.capture.LARGEST", 2 * batches[0].nbytes)
    assert [piece.rows for piece in written(folder, *batches)] == [4, 4, 2]


def test_batch_is_invisible_before_the_state_names_it(folder):
    written(folder, rows([1, 2]))
    assert seen(folder) == []
    assert ds.dataset(folder.path, partitioning="hive").to_table().num_rows == 0
    folder.settle(folder.existing())
    assert list(folder.staging.iterdir()) == []


@pytest.mark.guarantee("pipeline-29")
@pytest.mark.parametrize("moved", [0, 1])
def test_recorded_batch_is_completed_by_the_next_run(folder, monkeypatch, moved):
    pieces = written(folder, rows([1, 2], NEW_YEAR), rows([3], NEW_YEAR + timedelta(days=1)))
    _killed_after(monkeypatch, moved)
    with pytest.raises(KeyboardInterrupt):
        folder.publish(folder.existing(), pieces, None)
    assert seen(folder) == [1, 2][: 2 * moved]
    monkeypatch.undo()
    assert [path.exists() for path in folder.files(folder.existing())] == [True, True]
    state = folder.begun("orders", LIFE, {})
    assert seen(folder) == [1, 2, 3]
    assert (state.revision, state.rows) == (3, 3)
    folder.publish(state, written(folder, rows([4])), None)
    assert sorted(seen(folder)) == [1, 2, 3, 4]


def test_files_of_others_are_not_part_of_the_capture(folder):
    state = folder.publish(folder.existing(), written(folder, rows([1])), None)
    later = folder.publish(state, written(folder, rows([2])), None)
    (folder.path / "day=2026-01-01" / "mine.parquet").write_bytes(b"")
    assert [path.stem[-1] for path in folder.files(state)] == ["1"]
    assert [path.stem[-1] for path in folder.files(later)] == ["1", "2"]


def test_two_captures_do_not_share_a_folder(folder):
    other = CaptureFolder(folder.path)
    with folder.claimed(), pytest.raises(ConflictError, match="Another capture is writing into"), other.claimed():
        pass


def test_folder_belongs_to_one_stream_instance_of_one_bucket(folder):
    with pytest.raises(ConflictError, match="has a capture of bucket `orders`"):
        folder.begun("stock", LIFE, {})
    with pytest.raises(StreamReplaced, match="it was recreated at 2026-02-01"):
        folder.begun("orders", "2026-02-01T00:00:00Z", {})


def test_folders_with_other_content_are_refused(tmp_path):
    (tmp_path / "data.csv").write_text("a,b\n")
    with pytest.raises(ConflictError, match="has files that are not a capture"):
        CaptureFolder(tmp_path).state()
    with pytest.raises(UsageError, match="is not a folder"):
        CaptureFolder(tmp_path / "data.csv").state()
    with pytest.raises(NotFoundError, match="does not exist"):
        CaptureFolder(tmp_path / "nowhere").existing()


@pytest.mark.parametrize(
    ("damage", "how"),
    [
        (b"", "it is not JSON"),
        (b"[]", "it has another form"),
        (b'{"kvctl": "export"}', "it has no `bucket`"),
        (b'{"kvctl": "capture", "version": 1}', "it has no `bucket`"),
    ],
)
def test_a_damaged_state_is_named(folder, damage, how):
    (folder.path / STATE).write_bytes(damage)
    with pytest.raises(ConflictError, match=rf"_capture.json` is not the state of a capture: {how}"):
        folder.existing()


def test_a_state_of_a_newer_version_is_refused_by_its_number(folder):
    document = json.loads((folder.path / STATE).read_bytes())
    (folder.path / STATE).write_text(json.dumps({**document, "version": 2}))
    with pytest.raises(ConflictError, match="version 2, but this kvctl supports 1"):
        folder.existing()


def test_a_state_survives_the_disk(folder):
    state = CaptureState(
        bucket="b", incarnation=LIFE, config={"max_age": 0}, rows=3, last=(Piece("s", "d", 1, 2, 3, 4),)
    )
    assert capture_folder.decode(capture_folder.encode(state), folder.path) == state


def test_unwritable_capture_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(KvctlError, match="Could not write"), CaptureFolder(tmp_path / "file" / "below").claimed():
        pass


def _killed_after(monkeypatch: pytest.MonkeyPatch, moved: int) -> None:
    """Interrupt the move of files out of `_staging` after this number of files."""
    rename: Callable[[Path, Path], None] = capture_folder.os.replace
    left = iter([True] * moved)

    def replace(source: Path, target: Path) -> None:
        if target.name != STATE and not next(left, False):
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr(capture_folder.os, "replace", replace)
