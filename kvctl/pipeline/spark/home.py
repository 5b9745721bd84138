"""Home directory of Spark."""

import os
from contextlib import suppress
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

PARTS = ("bin", "jars", "sbin")


def spark_home(cache: Path, python: str | None = None) -> Path:
    """Return SPARK_HOME: the one that is set, or the installed package without its `python`.

    `python` is the workers' interpreter, if that is not this one.

    Spark puts `python/lib/pyspark.zip` first on its workers' path, and each of them compiles it again: a second for
    every step of a plan. Without the zip, they import the installed package, which is compiled.
    """
    from pyspark.find_spark_home import _find_spark_home

    found = Path(_find_spark_home())
    package = find_spec("pyspark")
    if python or os.environ.get("SPARK_HOME") or package is None or package.origin != str(found / "__init__.py"):
        return found
    home = cache / f"spark-{sha256(os.fsencode(found)).hexdigest()[:16]}"
    home.mkdir(parents=True, exist_ok=True)
    for name in PARTS:
        with suppress(FileExistsError):
            (home / name).symlink_to(found / name)
    return home
