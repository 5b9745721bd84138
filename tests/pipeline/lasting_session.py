"""Commands of the pipeline in one Spark session that lasts: a cluster starts executors for each, which takes long.

A process runs the command lines that it reads, each of them as `kvctl` does, except that the session stays.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Self

from kvctl.cli.app.main import main
from kvctl.pipeline.spark import engine
from kvctl.pipeline.spark.failure import explained
from tests.support.readme import ROOT


class LastingSession:
    """The process, for the side that asks. A context manager that ends it."""

    def __init__(self, where: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        self._where = where
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, **(env or {})},
        )

    def begin(self, *line: str) -> None:
        """Begin a command `kvctl pipeline ...`."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(["pipeline", *line, *self._where]) + "\n")
        self._process.stdin.flush()

    def result(self) -> tuple[int, str, str]:
        """Wait for its exit code, and what it printed."""
        assert self._process.stdout is not None
        code, out, errors = json.loads(self._process.stdout.readline())
        return code, out, errors

    def run(self, *line: str) -> tuple[int, str, str]:
        """Run a command."""
        self.begin(*line)
        return self.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError, subprocess.TimeoutExpired):
            self._process.communicate(timeout=60)
        self._process.kill()
        self._process.communicate()


class _Lasting(engine.Engine):
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        found = explained(error, self.log_tail) if isinstance(error, Exception) else error
        if found is not None and found is not error:
            raise found from error


def _serve() -> None:
    lasting: list[Any] = []

    def opened(target: engine.SparkTarget) -> engine.Engine:
        lasting.extend([] if lasting else [_Lasting(target)])
        return lasting[0]

    engine.Engine = opened  # type: ignore[assignment,misc]
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        with _captured(1) as out, _captured(2) as errors:
            code = main(json.loads(line))
        print(json.dumps([code, out[0], errors[0]]), file=answers, flush=True)
    if lasting:
        lasting[0].close()


@contextmanager
def _captured(descriptor: int) -> Iterator[list[str]]:
    """Give what is written to a descriptor."""
    kept, text = os.dup(descriptor), list[str]()
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), descriptor)
        try:
            yield text
        finally:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os.dup2(kept, descriptor)
            os.close(kept)
            file.seek(0)
            text.append(file.read().decode(errors="replace"))


if __name__ == "__main__":
    _serve()
