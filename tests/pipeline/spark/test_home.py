"""Home directory of Spark."""

import os
from pathlib import Path

import pyspark
import pytest

from kvctl.pipeline.spark.home import spark_home

INSTALLED = Path(pyspark.__file__).parent


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch):
    monkeypatch.delenv("SPARK_HOME", raising=False)


def test_spark_home_is_the_installed_package_without_its_python(tmp_path):
    home = spark_home(tmp_path)
    assert spark_home(tmp_path) == home
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
