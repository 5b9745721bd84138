"""Create the class archive: a session does what jobs do, and its JVM records the classes that it loaded.

That takes both cores of a small machine for a while, so it is done when a user asks for it, never beside other work.
"""

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvctl.errors import ConflictError, KvctlError
from kvctl.pipeline.spark.class_archive import Archive

TRAINING_DEADLINE_S = 600.0
"""Seconds for a JVM to end and write its archive."""


def train() -> Path:
    """Return the archive for the Java and the Spark of this machine, created if it does not exist.

    Raises ConflictError while another process creates it, KvctlError if the Java writes none.
    """
    from kvctl.pipeline.spark.engine import archive_here

    archive = archive_here()
    with _alone(archive):
        if not archive.usable():
            place = archive.path.parent / "training"
            shutil.rmtree(place, ignore_errors=True)  # left by a killed process
            place.mkdir()
            try:
                _make(archive, place)
            finally:
                shutil.rmtree(place, ignore_errors=True)
    return archive.path


def _make(archive: Archive, place: Path) -> None:
    from kvctl.pipeline.spark.engine import Engine
    from kvctl.pipeline.spark.rehearsal import rehearse

    fresh, scratch = place / "classes", place / "scratch"
    scratch.mkdir()
    with Engine.start(scratch=scratch, record=fresh) as engine:
        rehearse(engine, place)
    engine.end_jvm(TRAINING_DEADLINE_S)
    if not fresh.exists():
        raise KvctlError(f"This Java wrote no archive of Spark's classes: {archive.java.build}")
    archive.take(fresh)
    archive.discard_others()


@contextmanager
def _alone(archive: Archive) -> Iterator[None]:
    """Lock the cache for creating an archive. Raises ConflictError while another process holds it."""
    with open(archive.path.parent / "training.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConflictError("Another process is already preparing the archive of Spark's classes") from None
        yield
