"""The archive of classes: found by Java and jars, made once, used when it is there and never needed."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvctl.errors import ConflictError, KvctlError
from kvctl.pipeline.spark import class_trainer
from kvctl.pipeline.spark import engine as engine_module
from kvctl.pipeline.spark.class_archive import KEPT, Archive, find_archive
from kvctl.pipeline.spark.engine import Engine
from kvctl.pipeline.spark.java import Java
from kvctl.pipeline.spark.rehearsal import ROWS, rehearse
from kvctl.pipeline.spark.session_config import Target
from tests.support.readme import ROOT

JAVA = Java(Path("/opt/java"), 17, "Maker 17.0.1")


@pytest.fixture
def distribution(tmp_path):
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    (tmp_path / "spark" / "jars" / "core.jar").write_bytes(b"1")
    return tmp_path / "spark"


@pytest.fixture
def archive(tmp_path):
    """One that is not there yet."""
    return Archive(tmp_path / "one.classes", JAVA)


def written(folder: Path) -> Path:
    """Write the file of a JVM."""
    (folder / "fresh").write_bytes(b"123456")
    return folder / "fresh"


class TestFinding:
    def test_the_same_java_and_jars_have_the_same_archive(self, distribution, tmp_path):
        assert find_archive(JAVA, distribution, tmp_path) == find_archive(JAVA, distribution, tmp_path)

    def test_another_build_of_java_has_another(self, distribution, tmp_path):
        newer = Java(JAVA.home, 17, "Maker 17.0.2")
        assert find_archive(JAVA, distribution, tmp_path).path != find_archive(newer, distribution, tmp_path).path

    def test_jars_that_changed_have_another(self, distribution, tmp_path):
        before = find_archive(JAVA, distribution, tmp_path).path
        (distribution / "jars" / "core.jar").write_bytes(b"12")
        assert find_archive(JAVA, distribution, tmp_path).path != before


class TestUsing:
    def test_a_jvm_is_told_nothing_of_one_that_is_not_there(self, archive):
        assert archive.use() == []

    @pytest.mark.parametrize(
        ("version", "option"), [(17, "-XX:SharedArchiveFile="), (21, "-XX:SharedArchiveFile="), (25, "-XX:AOTCache=")]
    )
    def test_the_option_is_that_of_the_java(self, archive, tmp_path, version, option):
        archive.take(written(tmp_path))
        assert f"{option}{archive.path}" in Archive(archive.path, Java(JAVA.home, version, "")).use()

    @pytest.mark.parametrize("length", [0, 5, 7])
    def test_a_jvm_is_told_nothing_of_one_that_has_another_length(self, archive, tmp_path, length):
        archive.take(written(tmp_path))
        assert archive.usable()
        os.truncate(archive.path, length)
        assert archive.use() == []

    def test_those_least_used_go(self, archive, tmp_path):
        for number in range(KEPT + 2):
            (tmp_path / f"{number}.classes").touch()
            os.utime(tmp_path / f"{number}.classes", (number, number))
        archive.discard_others()
        assert sorted(path.name for path in tmp_path.glob("*.classes")) == ["2.classes", "3.classes", "4.classes"]


class TestMaking:
    def test_one_that_is_there_is_left(self, archive, tmp_path, monkeypatch):
        monkeypatch.setattr(class_trainer, "archive_here", lambda: archive)
        archive.take(written(tmp_path))
        assert class_trainer.Training().run().read_bytes() == b"123456"

    @pytest.mark.slow
    def test_what_it_rehearses_runs(self, engine, tmp_path):
        rehearse(engine, tmp_path)
        assert engine.spark.read.parquet(f"{tmp_path}/out").count() == ROWS

    def test_another_process_that_makes_it_is_a_conflict(self, archive, monkeypatch):
        monkeypatch.setattr(class_trainer, "archive_here", lambda: archive)
        with open(archive.path.parent / "training.lock", "w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            with pytest.raises(ConflictError, match="already preparing"):
                class_trainer.Training().run()
        assert not archive.usable()

    def test_place_for_it_is_the_cache_directory_only(self, tmp_path, monkeypatch):
        (tmp_path / "file").touch()
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
        with pytest.raises(KvctlError, match="Could not create the folder"):
            class_trainer.Training().run()

    def test_jvm_that_was_killed_while_it_writes_fails(self):
        engine = Engine(Target(), engine_module._Start(Target(), Path(), None, brief=False))
        engine._start.jvm = subprocess.Popen(["sleep", "60"], stdin=subprocess.PIPE)
        engine._start.jvm.kill()
        with pytest.raises(KvctlError, match="exit code -9"):
            engine.end_jvm(60)


STARTED = """
import sys
from kvctl.pipeline.spark.engine import Engine
from kvctl.pipeline.spark.session_config import Target
with Engine.start(Target(master="local[1]")) as engine:
    assert engine.spark.range(10).count() == 10
    print(" ".join(engine._jvm.args))
    print(open(f"/proc/{engine._jvm.pid}/maps").read())
    print(engine.log_tail(), file=sys.stderr)
"""


@pytest.mark.guarantee("pipeline-3")
@pytest.mark.slow
def test_it_is_made_used_and_survives_being_damaged(tmp_path):
    variables = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}

    def run(*command: str) -> str:
        done = subprocess.run(
            [sys.executable, *command], env=variables, cwd=tmp_path, capture_output=True, text=True, timeout=900
        )
        assert done.returncode == 0, done.stderr
        assert "rror" not in done.stderr
        return done.stdout

    run("-m", "kvctl", "pipeline", "check")
    assert not list((tmp_path / "kvctl" / "spark").glob("*.classes"))  # only when it is asked for
    run("-m", "kvctl", "pipeline", "warm")
    (made,) = (tmp_path / "kvctl" / "spark").glob("*.classes")
    assert made.stat().st_size > 50_000_000
    assert str(made) in run("-c", STARTED).split("\n", 1)[1]  # mapped into the JVM
    made.chmod(0o600)
    size = made.stat().st_size
    os.truncate(made, size // 2)
    run("-c", STARTED)
    made.write_bytes(b"nothing of the kind")
    os.truncate(made, size)
    run("-c", STARTED)


def test_the_archive_of_this_machine_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert engine_module.archive_here().path.parent == tmp_path / "kvctl" / "spark"
