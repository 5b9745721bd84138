"""One Spark session for the whole run, and buckets to read."""

import os
from collections.abc import Callable, Mapping

import pytest

from kvctl.pipeline.spark.engine import Engine, SparkTarget
from tests.support.readme import ROOT

Fill = Callable[..., str]
"""`fill({"key": b"value"}, max_msgs_per_subject=5)`: a fresh bucket that holds these entries; its name."""


@pytest.fixture(scope="session")
def spark_home(tmp_path_factory):
    """The home directory of the shared session's workers: what they resolve a context's name from."""
    return tmp_path_factory.mktemp("spark-home")


@pytest.fixture(scope="session")
def engine(spark_home):
    """The session that all tests of a process share, on two cores; takes four seconds to start.

    Settings of SQL may be changed in a test and put back; what kills processes starts an engine of its own.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(spark_home))
        patch.setenv("XDG_CONFIG_HOME", str(spark_home / ".config"))
        # Workers import the functions that tests give them.
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
        for name in [name for name in os.environ if name.startswith("NATS_")]:
            patch.delenv(name)
        # Compiled quickly and not well: what tests compute is little.
        quick = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
        running = Engine(SparkTarget(master="local[2]", conf=quick))
        _ = running.spark  # started in this environment
    with running:
        yield running


@pytest.fixture(scope="session")
def spark(engine):
    """The shared session itself."""
    return engine.spark


@pytest.fixture
def fill(raw, unique):
    """Makes buckets with entries on the shared server."""

    def fill(entries: Mapping[str, bytes] | None = None, **config: object) -> str:
        name = unique("SPARK")
        raw.create_bucket(name, **config)
        for key, value in (entries or {}).items():
            raw.put(name, key, value)
        return name

    return fill
