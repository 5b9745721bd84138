"""kvctl in a separate process, killed at one of its writes, and the streams on a server afterwards."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from tests.support.raw import RawClient

WRITES = ("STREAM.CREATE", "STREAM.UPDATE", "STREAM.DELETE", "STREAM.PURGE", "STREAM.MSG.DELETE")
KILLED = 99


def run(args: Sequence[str], *, at: int | None = None, answered: bool = False) -> tuple[int, list[str]]:
    """Run a command line, and return its exit code and the writes that it sent."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reader)
            silence = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(silence, stream)
            code = _run(args, writer, at, answered)
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        sent = pipe.read().split()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), sent


def output(args: Sequence[str]) -> tuple[int, str]:
    """Run a command line, and return its exit code and standard output."""
    with NamedTemporaryFile("r") as file:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                from kvctl.cli.app.main import main

                with Path(file.name).open("w") as sys.stdout, Path(os.devnull).open("w") as sys.stderr:
                    code = main(list(args))
            finally:
                os._exit(code)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file.read()


def _run(args: Sequence[str], pipe: int, at: int | None, answered: bool) -> int:
    from kvctl.cli.app.main import main
    from kvctl.jetstream.api import Api

    call, count = Api.call, 0

    async def counted(self: Api, endpoint: str, *rest: Any, **settings: Any) -> dict[str, Any]:
        nonlocal count
        if not endpoint.startswith(WRITES):
            return await call(self, endpoint, *rest, **settings)
        number, count = count, count + 1
        if number == at and not answered:
            os._exit(KILLED)
        os.write(pipe, f"{endpoint}\n".encode())
        reply = await call(self, endpoint, *rest, **settings)
        if number == at:
            os._exit(KILLED)
        return reply

    Api.call = counted  # type: ignore[method-assign]
    return main(list(args))


def state(raw: RawClient, suffix: str) -> dict[str, Any]:
    """Return configuration and contents of all streams with this suffix, which is left out."""
    found: dict[str, Any] = {}
    for stream in streams(raw, suffix):
        info = raw.api(f"STREAM.INFO.{stream}", {"subjects_filter": ">"})
        config = info["config"]
        config["metadata"] = {
            key: text for key, text in (config.get("metadata") or {}).items() if not key.startswith("_nats.")
        }
        subjects = info["state"].get("subjects") or {}
        last = {
            subject: raw.api(f"STREAM.MSG.GET.{stream}", {"last_by_subj": subject})["message"].get("data")
            for subject in subjects
        }
        found[stream] = _without([config, dict(sorted(subjects.items())), dict(sorted(last.items()))], suffix)
    return {name.removesuffix(suffix): value for name, value in found.items()}


def streams(raw: RawClient, suffix: str) -> list[str]:
    """Return all streams with this suffix."""
    names: list[str] = []
    while True:
        page = raw.api("STREAM.NAMES", {"offset": len(names)})
        names += page.get("streams") or []
        if not page.get("streams") or len(names) >= page["total"]:
            return sorted(name for name in names if name.endswith(suffix))


def _without(value: Any, suffix: str) -> Any:
    if isinstance(value, dict):
        return {_without(key, suffix): _without(item, suffix) for key, item in value.items()}
    if isinstance(value, list):
        return [_without(item, suffix) for item in value]
    return value.replace(suffix, "") if isinstance(value, str) else value
