"""The one place that makes a Spark session: on this machine, on a cluster, or behind Spark Connect."""

import os
import shutil
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from kvctl.pipeline import register, require_spark
from kvctl.pipeline.settings import Target, settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOGGING = Path(__file__).with_name("log4j2.properties")


class Engine:
    """A session that a job runs on: `with Engine.start(Target()) as engine: engine.spark.read...`."""

    def __init__(self, spark: "SparkSession", target: Target, scratch: Path) -> None:
        self.spark = spark
        self.target = target
        self._scratch = scratch

    @classmethod
    def start(cls, target: Target | None = None) -> Self:
        """A session with `nats-kv` registered. Raises KvctlError."""
        require_spark()
        target = target or Target()
        scratch = Path(tempfile.mkdtemp(prefix="kvctl-spark-"))
        spark = _classic(target, scratch)
        register(spark)
        return cls(spark, target, scratch)

    def close(self) -> None:
        """End the session and remove what it kept on this machine."""
        self.spark.stop()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _classic(target: Target, scratch: Path) -> "SparkSession":
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    java_options = f"-Dlog4j2.configurationFile=file:{LOGGING}"
    pairs = settings(target, cores=os.cpu_count() or 1, scratch=str(scratch), java_options=java_options)
    conf = SparkConf(loadDefaults=False).setAll(list(pairs.items()))
    with open(scratch / "spark.log", "ab") as log:
        gateway = launch_gateway(conf, {"stdout": log, "stderr": log})  # type: ignore[no-untyped-call]
    return SparkSession(SparkContext(conf=conf, gateway=gateway))
