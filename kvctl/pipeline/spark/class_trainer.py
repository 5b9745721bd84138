"""Create the class archive: a session does what jobs do, and its JVM records the classes that it loaded.

That takes both cores of a small machine for a while, so it is done when a user asks for it, never beside other work.
"""

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kvctl.errors import ConflictError, KvctlError
from kvctl.pipeline.spark.class_archive import Archive
from kvctl.pipeline.spark.engine import Engine, archive_here

TRAINING_DEADLINE_S = 600.0
"""Seconds for a JVM to end and write its archive."""


class Training:
    """Creation of the archive for the Java and the Spark of this machine."""

    def __init__(self) -> None:
        self._engine: Engine | None = None
        self._stopped = False

    def run(self) -> Path:
        """Return the archive, created if it does not exist.

        Raises ConflictError while another process creates it, KvctlError if the Java writes none.
        """
        archive = archive_here()
        with _alone(archive):
            if not archive.usable():
                place = archive.path.parent / "training"
                shutil.rmtree(place, ignore_errors=True)  # left by a killed process
                place.mkdir()
                try:
                    self._make(archive, place)
                finally:
                    shutil.rmtree(place, ignore_errors=True)
        return archive.path

    def stop(self) -> None:
        """End it: `run` raises an error in its thread, and leaves nothing behind."""
        self._stopped = True
        if self._engine is not None:
            self._engine.cancel()
            with suppress(KvctlError):
                self._engine.end_jvm(0)

    def _make(self, archive: Archive, place: Path) -> None:
        from kvctl.pipeline.spark.rehearsal import rehearse

        fresh, scratch = place / "classes", place / "scratch"
        scratch.mkdir()
        with Engine.begin(scratch=scratch, record=fresh) as engine:
            self._engine = engine
            if self._stopped:
                raise KvctlError("Stopped")
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
