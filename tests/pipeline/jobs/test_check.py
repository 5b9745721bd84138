"""The check of Spark: a planned read on its workers, and files of theirs that this machine sees."""

import platform

import pytest

from kvctl.errors import KvctlError
from kvctl.pipeline.jobs.check import check
from kvctl.pipeline.tables.storage import TablePlace


def test_workers_are_described_and_write_files_that_are_removed(engine, tmp_path):
    found = check(engine, TablePlace(str(tmp_path / "lake")))
    assert [worker.host for worker in found.workers] == [platform.node()]
    assert found.to == str(tmp_path / "lake")
    assert list(tmp_path.rglob("*")) == [tmp_path / "lake"]


def test_a_place_that_workers_cannot_write_is_named(engine, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(KvctlError, match=f"Could not write `{tmp_path}/file"):
        check(engine, TablePlace(str(tmp_path / "file" / "lake")))


def test_files_that_this_machine_does_not_see_are_an_error(engine, tmp_path, monkeypatch):
    monkeypatch.setattr(TablePlace, "sizes", lambda *_: {})
    with pytest.raises(KvctlError, match=f"on `{platform.node()}` wrote to .* are not there for this machine"):
        check(engine, TablePlace(str(tmp_path / "lake")))
