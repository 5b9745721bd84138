"""Captures: every change once in files that any reader understands, through restarts and other people's checkpoints."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from kvctl.errors import BucketNotFound, ConflictError, HistoryLost, StreamReplaced, UsageError
from kvctl.pipeline.jobs.capture import CaptureResult, capture, check_places
from kvctl.pipeline.jobs.capture_folder import CaptureFolder
from kvctl.pipeline.options import parse

Capture = Callable[..., CaptureResult]


@pytest.fixture
def take(engine, server, tmp_path):
    """Capture the existing changes of a bucket into `tmp_path / "capture"`."""

    def take(bucket: str, checkpoint: str = "checkpoint", **options: str) -> CaptureResult:
        asked = parse({"bucket": bucket, "url": server.url, **options})
        return capture(engine, asked, tmp_path / "capture", tmp_path / checkpoint, once=True)

    return take


def captured(folder: Path) -> list[tuple[int, str, str, bytes | None]]:
    """Return revision, key, operation and value from all files, as a plain reader finds them."""
    table = ds.dataset(folder, partitioning="hive").to_table()
    columns = [table[name].to_pylist() for name in ("revision", "key", "operation", "value")]
    return sorted(zip(*columns, strict=True))


@pytest.mark.guarantee("pipeline-29")
def test_every_change_is_captured_once_however_often_it_runs(fill, raw, take, tmp_path):
    bucket = fill({"a": b"1", "b": b"2"}, max_msgs_per_subject=5)
    left = tmp_path / "checkpoint" / "offsets" / ".0.8f2c-killed-in-the-first-write.tmp"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"v1\n")
    first = take(bucket)
    assert (first.rows, first.files, first.state.revision) == (2, 1, 2)
    raw.put(bucket, "a", b"", {"KV-Operation": "DEL"})
    raw.put(bucket, "b", b"\xff\x00")
    again = take(bucket, maxRevisionsPerTrigger="1")
    assert (again.rows, again.files, again.state.rows) == (2, 2, 4)
    assert captured(tmp_path / "capture") == [
        (1, "a", "PUT", b"1"),
        (2, "b", "PUT", b"2"),
        (3, "a", "DEL", None),
        (4, "b", "PUT", b"\xff\x00"),
    ]
    raw.put(bucket, "c", b"3")
    shutil.rmtree(tmp_path / "checkpoint")
    assert take(bucket).rows == 1, "the folder knows how far it is"
    assert [row[0] for row in captured(tmp_path / "capture")] == [1, 2, 3, 4, 5]


def test_foreign_checkpoint_and_recreated_bucket_are_refused(fill, raw, take, tmp_path):
    bucket = fill({"a": b"1"})
    take(bucket)
    shutil.move(tmp_path / "capture", tmp_path / "kept")
    with pytest.raises(ConflictError, match="does not belong to the capture in"):
        take(bucket)
    shutil.rmtree(tmp_path / "capture", ignore_errors=True)
    shutil.move(tmp_path / "kept", tmp_path / "capture")
    raw.api(f"STREAM.DELETE.KV_{bucket}")
    with pytest.raises(BucketNotFound):
        take(bucket)
    raw.create_bucket(bucket, {"a": b"other"})
    with pytest.raises(StreamReplaced, match="it was recreated"):
        take(bucket)
    assert captured(tmp_path / "capture") == [(1, "a", "PUT", b"1")]


def test_lost_changes_end_the_capture_unless_allowed(fill, raw, take, tmp_path):
    bucket = fill({"a": b"1"})
    take(bucket)
    raw.put(bucket, "b", b"2")
    raw.api(f"STREAM.PURGE.KV_{bucket}")
    with pytest.raises(HistoryLost, match="no longer holds revisions 2 to 2"):
        take(bucket)
    assert not take(bucket, failOnDataLoss="false").rows
    raw.put(bucket, "c", b"3")
    assert take(bucket).state.forced
    assert [row[0] for row in captured(tmp_path / "capture")] == [1, 3]


def test_error_in_a_batch_keeps_its_type(fill, take, monkeypatch, tmp_path):
    def refuse(*_: object) -> None:
        raise ConflictError("The disk is somebody else's", hint="Ask them")

    monkeypatch.setattr(CaptureFolder, "publish", refuse)
    with pytest.raises(ConflictError, match="The disk is somebody else's") as caught:
        take(fill({"a": b"1"}))
    assert caught.value.hint == "Ask them"
    assert not list((tmp_path / "capture").rglob("*.parquet"))


@pytest.mark.parametrize("checkpoint", ["capture/checkpoint", "capture", "."])
def test_a_checkpoint_is_kept_apart_from_the_data(tmp_path, checkpoint):
    with pytest.raises(UsageError, match=r"is inside|is among"):
        check_places(tmp_path / "capture", (tmp_path / checkpoint).resolve())
    check_places(tmp_path / "capture", tmp_path / "capture" / "_checkpoint")
