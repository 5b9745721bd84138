"""Buckets in Spark: the data source `nats-kv` and the jobs of `kvctl pipeline`.

Needs the extra `kvctl[spark]`.

spark.read.format("nats-kv").option("bucket", "orders").load()

Spark finds the source by its name where kvctl is installed; where it was shipped with `addPyFile`, `register` it.
"""

import os
from typing import TYPE_CHECKING, Any

from kvctl.errors import KvctlError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kvctl.pipeline.spark.engine import Engine as Engine

__all__ = ["INSTALL", "Engine", "register", "require_spark"]

INSTALL = "Install it with `pip install 'kvctl[spark]'`"


def register(spark: "SparkSession") -> None:
    """Make `nats-kv` known to a session. Raises KvctlError.

    Warns if the tasks of a session on this machine run another Python, which may lack kvctl.
    """
    require_spark()
    from kvctl.pipeline.data_source import KvDataSource

    spark.dataSource.register(KvDataSource)
    _check_python(spark)


def _check_python(spark: "SparkSession") -> None:
    import shutil
    import sys
    import warnings

    from pyspark.errors import PySparkException

    try:
        program, master = spark.sparkContext.pythonExec, spark.sparkContext.master
    except PySparkException:  # behind a Connect server
        return
    found = shutil.which(program)
    if (master or "").startswith("local") and (
        found is None or os.path.dirname(found) != os.path.dirname(sys.executable)
    ):
        warnings.warn(
            f"Spark runs its tasks with `{program}`, which may lack kvctl: before the session starts, set "
            f"PYSPARK_PYTHON={sys.executable}",
            stacklevel=3,
        )


def require_spark() -> None:
    """Raises KvctlError where the extra is not installed."""
    from importlib.util import find_spec

    missing = [name for name in ("pyspark", "pyarrow", "pandas", "deltalake") if find_spec(name) is None]
    if missing:
        raise KvctlError(f"The pipeline needs Spark: `{missing[0]}` is not installed", hint=INSTALL)


def __getattr__(name: str) -> Any:
    """Import `Engine` when it is first used: it needs the extra, and loads Spark."""
    if name != "Engine":
        raise AttributeError(f"module 'kvctl.pipeline' has no attribute '{name}'")
    from importlib import import_module

    return import_module("kvctl.pipeline.spark.engine").Engine
