"""File of Spark's classes as the JVM has them in memory, with which a session starts in about half the time.

It fits one build of Java and one set of jars, and is stored under a name derived from both in the user's cache. The JVM
checks it, and starts without it if it does not fit. `kvctl.pipeline.spark.class_trainer` creates it.
"""

import os
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from kvctl.pipeline.spark.java import Java

AHEAD_OF_TIME = 25
"""Java version from which on the file has linked classes and profiles, too (JEP 514)."""
KEPT = 3
"""Number of archives in a cache, one per environment; the least used are removed."""


@dataclass(frozen=True, slots=True)
class Archive:
    """Location of the file, which may not exist yet."""

    path: Path
    java: Java

    def usable(self) -> bool:
        """Return whether it exists with its original size: a JVM does not detect a truncated one, and crashes."""
        try:
            return self.path.stat().st_size == int(_size_of(self.path).read_text())
        except (OSError, ValueError):
            return False

    def take(self, fresh: Path) -> None:
        """Move the file that a JVM wrote into place, atomically."""
        size = fresh.stat().st_size
        fresh.replace(self.path)
        _size_of(self.path).write_text(f"{size}\n")

    def use(self) -> list[str]:
        """Return the options of a JVM that starts with it; none if it does not exist."""
        if not self.usable():
            return []
        with suppress(OSError):
            os.utime(self.path)
        if self.java.version >= AHEAD_OF_TIME:
            return [f"-XX:AOTCache={self.path}", "-Xlog:aot*=off"]
        return [f"-XX:SharedArchiveFile={self.path}", "-Xlog:cds*=off"]

    def record(self, file: Path) -> list[str]:
        """Return the options of a JVM that writes it to `file` when it ends, which takes several seconds."""
        flag = "AOTCacheOutput" if self.java.version >= AHEAD_OF_TIME else "ArchiveClassesAtExit"
        return [f"-XX:{flag}={file}", "-Xlog:disable"]

    def discard_others(self) -> None:
        """Remove archives beyond the most recently used ones."""
        others = sorted(self.path.parent.glob("*.classes"), key=_used, reverse=True)
        for path in others[KEPT:]:
            path.unlink(missing_ok=True)
            _size_of(path).unlink(missing_ok=True)


def find_archive(java: Java, spark_home: Path, cache: Path) -> Archive:
    """Return the archive for this Java and the jars of this Spark."""
    modules = java.home / "lib" / "modules"
    seen = [java.build, str(java.home.resolve()), _stamp(modules), os.environ.get("SPARK_CONF_DIR", "")]
    seen += [str(spark_home), *sorted(_stamp(jar) for jar in (spark_home / "jars").glob("*.jar"))]
    return Archive(cache / f"{sha256(chr(10).join(seen).encode()).hexdigest()[:16]}.classes", java)


def _size_of(path: Path) -> Path:
    """Return the file that records an archive's size."""
    return path.with_suffix(".size")


def _stamp(path: Path) -> str:
    """Return a text that changes with a file."""
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
