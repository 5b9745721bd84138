"""Makes the archive of classes: a session of its own does what jobs do, and its JVM writes down what it loaded.

That takes a while, so it runs aside: `python -m kvctl.pipeline.spark.class_trainer`, which `train_aside` starts.
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
"""The variable that is `off` where nothing shall be made aside."""
PATIENCE = 600.0
"""Seconds for a JVM to end and write its archive; nobody waits for it."""


def train_aside(archive: Archive) -> bool:
    """Begin making an archive that is not there, in a process that outlives this one; whether it was begun."""
    if archive.usable() or archive.tried_lately() or os.environ.get(SWITCH) == "off" or _busy(archive):
        return False
    command = [sys.executable, "-m", "kvctl.pipeline.spark.class_trainer"]
    nowhere = subprocess.DEVNULL
    with suppress(OSError):
        subprocess.Popen(command, stdin=nowhere, stdout=nowhere, stderr=nowhere, start_new_session=True)
        return True
    return False


def train() -> Path | None:
    """Make the archive for the Java and the Spark of this machine.

    None where another process is at it, and where the Java writes none.
    """
    from kvctl.pipeline.spark.engine import archive_here

    archive = archive_here()
    with _alone(archive) as alone:
        if alone and not archive.usable():
            place = archive.path.parent / "training"
            shutil.rmtree(place, ignore_errors=True)  # of one that was killed
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
    engine.end_jvm(PATIENCE)
    if fresh.exists():
        archive.take(fresh)
        archive.in_vain.unlink()
        archive.discard_others()


@contextmanager
def _alone(archive: Archive) -> Iterator[bool]:
    """Whether no other process makes one in this cache; none does while the block runs."""
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
        return True  # no cache that could be written


if __name__ == "__main__":
    os.nice(10)
    train()
