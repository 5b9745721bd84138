"""Files that appear complete, whoever else writes into their folder."""

import os
import stat
from contextlib import suppress

import pytest

from kvctl import atomic_file


def test_file_keeps_its_content_until_the_new_one_is_complete(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with atomic_file.replacing(path) as file:
        file.write(b"new" * 100_000)
        file.flush()
        assert path.read_bytes() == b"old"
    assert (path.read_bytes(), os.listdir(tmp_path)) == (b"new" * 100_000, ["file"])


def test_file_stays_as_it_was_after_an_error(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with suppress(KeyboardInterrupt), atomic_file.replacing(path) as file:
        file.write(b"new")
        raise KeyboardInterrupt
    assert (path.read_bytes(), os.listdir(tmp_path)) == (b"old", ["file"])


def test_two_writers_of_a_file_leave_the_content_of_one(tmp_path):
    path = tmp_path / "file"
    with atomic_file.replacing(path) as first, atomic_file.replacing(path) as second:
        first.write(b"first" * 1000)
        second.write(b"second")
    assert (path.read_bytes(), os.listdir(tmp_path)) == (b"first" * 1000, ["file"])


def test_temporary_name_that_is_taken_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "urandom", lambda size: b"\0" * size)
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    link = tmp_path / ".file.00000000.part"
    link.symlink_to(victim)
    with pytest.raises(FileExistsError):
        atomic_file.replace(tmp_path / "file", b"new")
    assert (victim.read_bytes(), link.is_symlink()) == (b"precious", True)


def test_link_is_replaced_and_not_followed(tmp_path):
    victim, path = tmp_path / "victim", tmp_path / "file"
    victim.write_bytes(b"precious")
    path.symlink_to(victim)
    atomic_file.replace(path, b"new")
    assert (victim.read_bytes(), path.read_bytes(), path.is_symlink()) == (b"precious", b"new", False)


@pytest.mark.parametrize(("mode", "expected"), [(atomic_file.PRIVATE, 0o600), (atomic_file.PUBLIC, 0o640)])
def test_mode_is_private_or_as_the_umask_says(tmp_path, mode, expected):
    former = os.umask(0o027)
    try:
        atomic_file.replace(tmp_path / "file", b"new", mode=mode)
    finally:
        os.umask(former)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == expected


def test_temporary_file_is_created_in_the_folder_that_is_named(tmp_path):
    aside = tmp_path / "aside"
    aside.mkdir()
    with atomic_file.replacing(tmp_path / "file", beside=aside):
        assert (os.listdir(tmp_path), len(os.listdir(aside))) == (["aside"], 1)
    assert (sorted(os.listdir(tmp_path)), os.listdir(aside)) == (["aside", "file"], [])
