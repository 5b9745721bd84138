"""Create the class archive: a separate session does what jobs do, and its JVM records the classes that it loaded.

That takes a while, so it runs in the background: `python -m kvctl.pipeline.spark.class_trainer`, started by
`train_aside`.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kvctl.pipeline.spark.class_archive import Archive

SWITCH = "KVCTL_SPARK_ARCHIVE"
"""Environment variable; `off` disables creating archives in the background."""
TRAINING_DEADLINE_S = 600.0
"""Seconds for a JVM to end and write its archive; nobody waits for it."""


def train_aside(archive: Archive) -> bool:
    """Start creating a missing archive, in a process that outlives this one; return whether it was started."""
    if archive.usable() or archive.tried_lately() or os.environ.get(SWITCH) == "off" or _busy(archive):
        return False
    command = [sys.executable, "-m", "kvctl.pipeline.spark.class_trainer"]
    nowhere = subprocess.DEVNULL
    with suppress(OSError):
        subprocess.Popen(command, stdin=nowhere, stdout=nowhere, stderr=nowhere, start_new_session=True)
        return True
    return False


def train() -> Path | None:
    """Create the archive for the Java and the Spark of this machine.

    Returns None if another process is creating it, or if the Java writes none.
    """
    from kvctl.pipeline.spark.engine import archive_here

    archive = archive_here()
    with _alone(archive) as alone:
        if alone and not archive.usable():
            place = archive.path.parent / "training"
            shutil.rmtree(place, ignore_errors=True)  # left by a killed process
            place.mkdir()
            try:
                _make(archive, place)
            finally:
                shutil.rmtree(place, ignore_errors=True)
    return archive.path if archive.usable() else None


def _make(archive: Archive, place: Path) -> None:
    from kvctl.pipeline.spark.engine import Engine
    from kvctl.pipeline.spark.rehearsal import rehearse

    fresh = place / "classes"
    archive.in_vain.touch()
    with Engine.start(record=fresh) as engine:
        rehearse(engine.spark, place)
    engine.end_jvm(TRAINING_DEADLINE_S)
    if fresh.exists():
        archive.take(fresh)
        archive.in_vain.unlink()
        archive.discard_others()


@contextmanager
def _alone(archive: Archive) -> Iterator[bool]:
    """Lock the cache for creating an archive; yields whether it succeeded."""
    with open(archive.path.parent / "training.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True


def _busy(archive: Archive) -> bool:
    try:
        with _alone(archive) as alone:
            return not alone
    except OSError:
        return True  # the cache is not writable


if __name__ == "__main__":
    os.nice(10)
    train()
