"""A cluster like one of machines: workers that run as another user, each in file systems of its own."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.pipeline.cluster import SMALL, SPARK_HOME, WORKERS, Cluster, run_cluster
from tests.pipeline.lasting_session import LastingSession
from tests.support.readme import ROOT

_APART = """
set -e
hostname "$1"
seen="$2"
shift 2
mkdir -p "$seen"
for path in $PROGRAMS; do
    case "$path" in "$HOME_OF_ROOT"/*)
        mkdir -p "$seen$path"
        mount --bind "$path" "$seen$path"
    esac
done
mount -t tmpfs -o mode=755 own "$HOME_OF_ROOT"
for path in $PROGRAMS; do
    case "$path" in "$HOME_OF_ROOT"/*)
        mkdir -p "$path"
        mount --bind "$seen$path" "$path"
    esac
done
while [ "$1" != -- ]; do mount -t tmpfs -o mode=1777 own "$1"; shift; done
shift
exec setpriv --reuid=nobody --regid=nogroup --clear-groups "$@"
"""
"""Names a machine, gives it file systems of its own over these folders, and runs a command there as nobody.

Root's home is one of them. Programs that are in it are there for nobody, too.
"""
_PROGRAMS = {sys.base_prefix, sys.prefix, str(ROOT), str(SPARK_HOME.parent)}


@dataclass(frozen=True)
class Machines:
    """Cluster of the workers `first` and `second`, a session on it, and folders as the workers see them."""

    cluster: Cluster
    where: tuple[str, ...]
    session: LastingSession
    separate: bool
    """False if this machine has no namespaces for the workers, so that they run as any process."""
    shared: Path
    """The same for all machines; everybody writes."""
    closed: Path
    """The same for all machines; only this user writes."""
    partly: Path
    """The second worker has its own."""
    apart: Path
    """Both workers have their own: home and temporary directory of the driver."""

    def folder(self, name: str) -> Path:
        """Return a new shared folder."""
        path = self.shared / name
        path.mkdir()
        path.chmod(0o777)
        return path


@pytest.fixture(scope="session")
def machines() -> Iterator[Machines]:
    place = Path(tempfile.mkdtemp(prefix="kvctl-machines-"))
    try:
        place.chmod(0o777)  # the workers' user makes its folders there
        shared, closed, partly, apart = folders = [place / name for name in ("shared", "closed", "partly", "apart")]
        for folder in folders:
            folder.mkdir()
            folder.chmod(0o755 if folder == closed else 0o777)
        own = [["first", f"{place}/root1", str(apart)], ["second", f"{place}/root2", str(apart), str(partly)]]
        begin = ["env", f"HOME_OF_ROOT={Path.home()}", f"PROGRAMS={' '.join(_PROGRAMS)}", "unshare", "-m", "-u"]
        inside = [[*begin, "sh", "-c", _APART, "sh", *words, "--"] for words in own]
        separate = _separate()
        with run_cluster(place, inside=inside if separate else ((),) * WORKERS) as cluster:
            where = ("--master", cluster.url, *SMALL)
            with LastingSession(where, {"HOME": str(apart), "TMPDIR": str(apart)}) as session:
                yield Machines(cluster, where, session, separate, shared, closed, partly, apart)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _separate() -> bool:
    if os.geteuid() != 0 or not shutil.which("unshare") or not shutil.which("setpriv"):
        return False
    return subprocess.run(["unshare", "-m", "-u", "true"], capture_output=True, check=False).returncode == 0
