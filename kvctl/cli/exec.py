"""`--exec CMD` for entries and messages: metadata in environment variables, the value on standard input, no shell.

A message is acknowledged if the command succeeds, and redelivered after a delay if it fails.
"""

import asyncio
import json
import os
import re
import shlex
import shutil
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta

import kvctl
from kvctl.cli.app.session import Session
from kvctl.errors import KvctlError, NoServer, PartlyDone, UnreachableError, UsageError
from kvctl.jetstream.consumers import admin
from kvctl.units import format_time, ttl_field

TERMINATION_GRACE_S = 5.0
"""Seconds between SIGTERM and SIGKILL for a command that is running when kvctl is interrupted."""
LONGEST_DELAY = 300
"""Seconds, the longest delay before a message is redelivered whose command keeps failing."""
ACK_WAIT = 10.0
"""Seconds, the acknowledgement wait to assume if the consumer's configuration cannot be read."""


class Execution:
    """Sequential runs of one command. A failed run is reported, and the next one is not affected."""

    def __init__(self, session: Session, text: str) -> None:
        """Split and look up the command. Raises UsageError if it cannot be split or found."""
        self._session = session
        self._command = _split(text)
        if syntax := shell_syntax(text):
            session.warn(f"`{syntax}` needs a shell, and CMD runs without one: use {_with_shell(text)}")
        self._runs = 0
        self._failed = 0

    async def run(self, entry: "kvctl.Entry") -> None:
        """Run the command for an entry and wait for it to end."""
        await self.attempt(f"`{entry.key}` (revision {entry.revision})", environment(entry), entry.value)

    async def attempt(self, what: str, variables: Mapping[bytes, bytes], data: bytes) -> bool:
        """Run the command with these variables and the data on standard input; return False if it failed."""
        self._runs += 1
        problem = await self._attempt(variables, data)
        if problem:
            self._failed += 1
            self._session.warn(f"`{self._command[0]}` {problem} for {what}")
        return not problem

    def finish(self, things: str = "entries") -> None:
        """Raise PartlyDone if a run failed."""
        if self._failed:
            raise PartlyDone(f"`{self._command[0]}` failed for {self._failed} of {self._runs} {things}")

    async def _attempt(self, variables: Mapping[bytes, bytes], data: bytes) -> str:
        """Run the command and return the problem, or an empty text."""
        if any(b"\0" in value for value in variables.values()):
            return "was not run: an environment variable cannot hold a NUL byte"
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command, stdin=asyncio.subprocess.PIPE, env={**os.environb, **variables}
            )
        except OSError as error:
            return f"could not be run ({error.strerror})"
        try:
            await process.communicate(data)
        except BaseException:
            await _end(process)
            raise
        code = process.returncode or 0
        return "" if code == 0 else f"exited with code {code}" if code > 0 else f"was killed by signal {-code}"


class MessageExecution:
    """Sequential runs of one command for messages, with their acknowledgements."""

    def __init__(self, session: Session, text: str, *, answers: bool) -> None:
        """Split and look up the command. Raises UsageError if it cannot be split or found."""
        self.stopping = False
        """Return further messages to the server instead of running the command."""
        self._session = session
        self._execution = Execution(session, text)
        self._answers = answers
        self._ack_wait = ACK_WAIT

    async def prepare(self, stream: str, consumer: str | None) -> None:
        """Read the consumer's acknowledgement policy and wait. Raises NotFoundError."""
        if consumer is None:
            return
        with suppress(UnreachableError):
            config = (await admin.info((await self._session.client()).api, stream, consumer))["config"]
            waits = [*(config.get("backoff") or []), config.get("ack_wait", 0)]
            self._answers = self._answers and config.get("ack_policy", "none") != "none"
            self._ack_wait = min([wait / 1e9 for wait in waits if wait] or [ACK_WAIT])

    async def run(self, message: "kvctl.Message") -> None:
        """Run the command for a message, then acknowledge or reject it."""
        if self.stopping:
            await self._answer(message, done=False, immediately=True)
            return
        alive = asyncio.ensure_future(self._keep_alive(message))
        try:
            what = f"message {message.sequence} on `{message.subject}`"
            done = await self._execution.attempt(what, variables_of(facts(message)), message.data)
        finally:
            alive.cancel()
        await self._answer(message, done=done)

    def finish(self) -> None:
        """Raise PartlyDone if a run failed."""
        self._execution.finish("messages")

    async def _answer(self, message: "kvctl.Message", *, done: bool, immediately: bool = False) -> None:
        if not self._answers:
            return
        try:
            if done:
                await message.ack()
            else:
                await message.nak(None if immediately else delay(message.metadata.delivered))
        except NoServer:
            self._session.warn(
                f"The connection was lost before message {message.sequence} was acknowledged: it will be redelivered"
            )

    async def _keep_alive(self, message: "kvctl.Message") -> None:
        while self._answers:
            await asyncio.sleep(self._ack_wait / 2)
            with suppress(KvctlError):
                await message.in_progress()


def environment(entry: "kvctl.Entry") -> dict[bytes, bytes]:
    """Return the variables that describe an entry; names that are not UTF-8 keep their bytes."""
    facts: Mapping[str, object] = {
        "BUCKET": entry.bucket,
        "KEY": entry.key,
        "REVISION": entry.revision,
        "CREATED": format_time(entry.created_ns),
        "OPERATION": entry.operation,
        "REASON": entry.reason,
        "DELTA": entry.delta,
        "TTL": None if entry.ttl is None else ttl_field(entry.ttl),
        "SIZE": entry.size,
    }
    return variables_of(facts)


def variables_of(facts: Mapping[str, object]) -> dict[bytes, bytes]:
    """Encode facts as variables: names with the prefix `KVCTL_`, None as an empty text."""
    return {f"KVCTL_{name}".encode(): os.fsencode(str("" if fact is None else fact)) for name, fact in facts.items()}


def _split(text: str) -> list[str]:
    try:
        command = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"`--exec {text}` cannot be split into words: {error}") from None
    if not command:
        raise UsageError("`--exec` is empty")
    if shutil.which(command[0]) is None:
        raise UsageError(
            f"Command `{command[0]}` not found",
            hint=f"Commands run without a shell; for pipes and variables use {_with_shell()}",
        )
    return command


def shell_syntax(text: str) -> str | None:
    """Return the first variable or operator in CMD that only a shell understands; None if it calls an interpreter."""
    if re.search(r"\s-\w*[ce]\s", text):
        return None
    unquoted = re.sub(r"'[^']*'|\\.", "", text)
    found = re.search(r"\$\w+|\$[{(]|`", unquoted) or re.search(r"[|&;<>]+", re.sub(r'"[^"]*"', "", unquoted))
    return found and found.group()


def _with_shell(text: str = "...") -> str:
    """Return the option that runs CMD in a shell, with dots for one that has quotes itself."""
    inner = "..." if re.search(r"['\"\\]", text) else text
    return f"`--exec 'sh -c \"{inner}\"'`"


async def _end(process: "asyncio.subprocess.Process") -> None:
    """Send SIGTERM, and SIGKILL if the command has not ended after TERMINATION_GRACE_S."""
    with suppress(ProcessLookupError):
        process.terminate()
        try:
            async with asyncio.timeout(TERMINATION_GRACE_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


def delay(delivered: int) -> timedelta:
    """Return the redelivery delay after this many deliveries: 1s, 2s, 4s, up to 5m."""
    return timedelta(seconds=min(2.0 ** min(delivered - 1, 20), LONGEST_DELAY))


def facts(message: "kvctl.Message") -> dict[str, object]:
    """Return the metadata of a message, which the command receives in its environment."""
    metadata = message.metadata
    return {
        "STREAM": metadata.stream,
        "CONSUMER": metadata.consumer,
        "SUBJECT": message.subject,
        "SEQUENCE": metadata.sequence,
        "CONSUMER_SEQUENCE": metadata.consumer_sequence,
        "DELIVERED": metadata.delivered,
        "PENDING": metadata.pending,
        "TIME": format_time(metadata.time_ns),
        "SIZE": len(message.data),
        "HEADERS": json.dumps(message.headers, ensure_ascii=False),
    }
