"""A file of Spark's classes as the JVM has them in memory, with which a session starts in about half the time.

It fits one build of Java and one set of jars, and lies under a name made of both in the user's cache. The JVM checks
it, and starts without it where it does not fit. `kvctl.pipeline.spark.class_trainer` makes it.
"""

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from kvctl.pipeline.spark.java import Java

AHEAD_OF_TIME = 25
"""The Java from which on the file holds linked classes and profiles too (JEP 514)."""
DAY = 86_400.0
KEPT = 3
"""Archives in a cache: one each for as many environments, the least used go."""


@dataclass(frozen=True, slots=True)
class Archive:
    """Where the file is, or would be."""

    path: Path
    java: Java

    def usable(self) -> bool:
        """Whether it is there, as long as it was written: a JVM does not see that one was cut off, and dies of it."""
        try:
            return self.path.stat().st_size == int(_size_of(self.path).read_text())
        except (OSError, ValueError):
            return False

    def take(self, fresh: Path) -> None:
        """Put in place what a JVM wrote, in one step: nobody sees half of it."""
        size = fresh.stat().st_size
        fresh.replace(self.path)
        _size_of(self.path).write_text(f"{size}\n")

    def use(self) -> list[str]:
        """Options of a JVM that starts with it; none where it is not there."""
        if not self.usable():
            return []
        with suppress(OSError):
            os.utime(self.path)
        if self.java.version >= AHEAD_OF_TIME:
            return [f"-XX:AOTCache={self.path}", "-Xlog:aot*=off"]
        return [f"-XX:SharedArchiveFile={self.path}", "-Xlog:cds*=off"]

    def record(self, file: Path) -> list[str]:
        """Options of a JVM that writes it to `file` when it ends, which takes several seconds."""
        flag = "AOTCacheOutput" if self.java.version >= AHEAD_OF_TIME else "ArchiveClassesAtExit"
        return [f"-XX:{flag}={file}", "-Xlog:disable"]

    @property
    def in_vain(self) -> Path:
        """The mark of an attempt to make it that did not come to its end."""
        return self.path.with_suffix(".none")

    def tried_lately(self) -> bool:
        """Whether it could not be made in the last day, so that trying again would not help."""
        return time.time() - _used(self.in_vain) < DAY

    def discard_others(self) -> None:
        """Remove archives beyond the most recently used ones."""
        others = sorted(self.path.parent.glob("*.classes"), key=_used, reverse=True)
        for path in others[KEPT:]:
            path.unlink(missing_ok=True)
            _size_of(path).unlink(missing_ok=True)


def find_archive(java: Java, spark_home: Path, cache: Path) -> Archive:
    """The archive for this Java and the jars of this Spark."""
    modules = java.home / "lib" / "modules"
    seen = [java.build, str(java.home.resolve()), _stamp(modules), os.environ.get("SPARK_CONF_DIR", "")]
    seen += [str(spark_home), *sorted(_stamp(jar) for jar in (spark_home / "jars").glob("*.jar"))]
    return Archive(cache / f"{sha256(chr(10).join(seen).encode()).hexdigest()[:16]}.classes", java)


def _size_of(path: Path) -> Path:
    """Where an archive's size is noted."""
    return path.with_suffix(".size")


def _stamp(path: Path) -> str:
    """What changes with a file."""
    try:
        found = path.stat()
    except OSError:
        return path.name
    return f"{path.name} {found.st_size} {found.st_mtime_ns}"


def _used(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
