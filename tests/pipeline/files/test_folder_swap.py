"""Atomic replacement of a folder: complete before and after, and restored after a kill in between."""

import shutil
from pathlib import Path

import pytest

from kvctl.errors import KvctlError
from kvctl.pipeline.files import folder_swap


def made(place: Path, text: str) -> Path:
    """A folder with one file."""
    place.mkdir(parents=True)
    (place / "data").write_text(text)
    return place


def test_folder_is_created_and_replaced_without_leftovers(tmp_path):
    folder = tmp_path / "state"
    for text in ("first", "second"):
        with folder_swap.beside(folder) as new:
            folder_swap.take_place(folder, made(new, text))
        assert (folder / "data").read_text() == text
        assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_failure_leaves_the_folder_unchanged(tmp_path):
    folder = made(tmp_path / "state", "before")
    with folder_swap.beside(folder) as new:
        made(new, "half")
    assert (folder / "data").read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


@pytest.mark.parametrize("name", ["state", "state [1]*"])
def test_folder_moved_away_by_a_killed_process_is_restored(name, tmp_path):
    folder = tmp_path / name
    made(tmp_path / f".{name}.kvctl-dead" / "old", "before")
    made(tmp_path / f".{name}.kvctl-dead" / "new", "after")
    with folder_swap.beside(folder):
        assert (folder / "data").read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_folder_of_a_running_process_is_left_alone(tmp_path):
    folder = tmp_path / "state"
    with folder_swap.beside(folder) as first:
        made(first, "first")
        with folder_swap.beside(folder) as second:
            assert first.exists()
            folder_swap.take_place(folder, made(second, "second"))
        folder_swap.take_place(folder, first)
    assert (folder / "data").read_text() == "first"


def test_unwritable_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(KvctlError, match="Could not write"), folder_swap.beside(tmp_path / "file" / "state"):
        shutil.rmtree(tmp_path)
