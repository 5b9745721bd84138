"""A folder that is replaced at once: whole before, whole after, and put back where a process was killed in between."""

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


def test_a_folder_is_made_and_replaced_without_a_trace(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    for text in ("first", "second"):
        with folder_swap.beside(folder) as new:
            folder_swap.take_place(folder, made(new, text))
        assert (folder / "data").read_text() == text
        assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_what_fails_leaves_the_folder_as_it_was(tmp_path: Path) -> None:
    folder = made(tmp_path / "state", "before")
    with folder_swap.beside(folder) as new:
        made(new, "half")
    assert (folder / "data").read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


@pytest.mark.parametrize("name", ["state", "state [1]*"])
def test_a_folder_that_a_killed_process_had_moved_away_comes_back(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    made(tmp_path / f".{name}.kvctl-dead" / "old", "before")
    made(tmp_path / f".{name}.kvctl-dead" / "new", "after")
    with folder_swap.beside(folder):
        assert (folder / "data").read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_what_a_living_process_makes_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    with folder_swap.beside(folder) as first:
        made(first, "first")
        with folder_swap.beside(folder) as second:
            assert first.exists()
            folder_swap.take_place(folder, made(second, "second"))
        folder_swap.take_place(folder, first)
    assert (folder / "data").read_text() == "first"


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(KvctlError, match="Could not write"), folder_swap.beside(tmp_path / "file" / "state"):
        shutil.rmtree(tmp_path)
