"""Spark's checkpoints: how far a query is, and what a kill in the very first write leaves."""

import json
from pathlib import Path

import pytest

from kvctl.errors import ConflictError
from kvctl.pipeline.jobs.capture import Checkpoint, read_checkpoint, recover_checkpoint
from kvctl.pipeline.read.offsets import Offset

LIFE = "2026-01-31T12:00:00Z"


def write(folder: Path, *, planned: int = 0, committed: int = 0, sources: int = 1) -> None:
    """A checkpoint as Spark 4.3 leaves it."""
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    (folder / "metadata").write_text('{"id":"7c770ffc"}')
    for batch in range(planned):
        offset = json.dumps(Offset(10 * batch, LIFE).document())
        told = ["v1", '{"batchWatermarkMs":0}', *[offset] * sources]
        (folder / "offsets" / str(batch)).write_text("\n".join(told))
        (folder / "offsets" / f".{batch}.crc").write_bytes(b"crc")
    for batch in range(committed):
        (folder / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')


def test_how_far_a_query_is(tmp_path):
    assert read_checkpoint(tmp_path) == Checkpoint(None, 0, 0, None)
    write(tmp_path, planned=12, committed=11)
    assert read_checkpoint(tmp_path) == Checkpoint("7c770ffc", 12, 11, Offset(100, LIFE))


@pytest.mark.parametrize("damage", ["", "v1", "v1\n{}\nnot json", 'v1\n{}\n{"revision": 5, "version": 1}'])
def test_what_is_no_checkpoint_is_named(tmp_path, damage):
    write(tmp_path, planned=1, committed=1)
    (tmp_path / "offsets" / "0").write_text(damage)
    with pytest.raises(ConflictError, match="is not a checkpoint of a stream of one bucket"):
        read_checkpoint(tmp_path)


def test_a_query_of_several_sources_is_no_capture(tmp_path):
    write(tmp_path, planned=1, committed=1, sources=2)
    with pytest.raises(ConflictError, match="2 sources"):
        read_checkpoint(tmp_path)


def test_what_a_kill_in_the_first_write_left_is_cleared(tmp_path):
    write(tmp_path)
    (tmp_path / "offsets" / ".0.8f2c.tmp").write_bytes(b"v1\n")
    assert recover_checkpoint(tmp_path)
    assert [path.name for path in tmp_path.rglob("*")] == ["metadata"]
    assert not recover_checkpoint(tmp_path)


def test_a_checkpoint_with_a_batch_is_left_alone(tmp_path):
    write(tmp_path, planned=1)
    (tmp_path / "offsets" / ".1.8f2c.tmp").write_bytes(b"v1\n")
    assert not recover_checkpoint(tmp_path)
    assert (tmp_path / "offsets" / ".1.8f2c.tmp").exists()


def test_other_things_in_a_folder_are_left_alone(tmp_path):
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / ".hidden").write_text("mine")
    assert not recover_checkpoint(tmp_path)
