"""`--exec CMD` for messages: acknowledged when the command succeeds, delivered again later when it fails."""

import json
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from kvctl.cli.app.session import Session
from kvctl.cli.process.exec import Execution, variables_of
from kvctl.errors import KvctlError, NoServer
from kvctl.units import format_time

if TYPE_CHECKING:
    from kvctl.jetstream.consumers.message import Message

LONGEST_DELAY = 300
"""Seconds until a message comes again whose command keeps failing."""
ACK_WAIT = 10.0
"""Seconds to assume for a consumer whose settings may not be read."""


class MessageExecution:
    """Runs follow one another."""

    def __init__(self, session: Session, text: str, *, answers: bool) -> None:
        """Raises UsageError for a command that cannot be split or found."""
        self.stopping = False
        """Whether what comes is given back instead."""
        self._session = session
        self._execution = Execution(session, text)
        self._answers = answers
        self._ack_wait = ACK_WAIT

    async def prepare(self, stream: str, consumer: str | None) -> None:
        """Learn how long the consumer waits for an answer, if it does at all. Raises NotFoundError."""
        from kvctl.errors import UnreachableError
        from kvctl.jetstream.consumers import admin

        if consumer is None:
            return
        with suppress(UnreachableError):
            config = (await admin.info((await self._session.client()).api, stream, consumer))["config"]
            waits = [*(config.get("backoff") or []), config.get("ack_wait", 0)]
            self._answers = self._answers and config.get("ack_policy", "none") != "none"
            self._ack_wait = min([wait / 1e9 for wait in waits if wait] or [ACK_WAIT])

    async def run(self, message: "Message") -> None:
        """Run the command for a message, and answer for it."""
        import asyncio

        if self.stopping:
            await self._answer(message, done=False, again_at_once=True)
            return
        alive = asyncio.ensure_future(self._keep_alive(message))
        try:
            what = f"message {message.sequence} on `{message.subject}`"
            done = await self._execution.attempt(what, variables_of(facts(message)), message.data)
        finally:
            alive.cancel()
        await self._answer(message, done=done)

    def finish(self) -> None:
        """Raises PartlyDone if some run failed."""
        self._execution.finish("messages")

    async def _answer(self, message: "Message", *, done: bool, again_at_once: bool = False) -> None:
        if not self._answers:
            return
        try:
            if done:
                await message.ack()
            else:
                await message.nak(None if again_at_once else delay(message.metadata.delivered))
        except NoServer:
            self._session.warn(
                f"The connection was lost before message {message.sequence} was answered: it comes again"
            )

    async def _keep_alive(self, message: "Message") -> None:
        import asyncio

        while self._answers:
            await asyncio.sleep(self._ack_wait / 2)
            with suppress(KvctlError):
                await message.in_progress()


def delay(delivered: int) -> timedelta:
    """How long to wait after so many failures: 1s, 2s, 4s, up to 5m."""
    return timedelta(seconds=min(2.0 ** min(delivered - 1, 20), LONGEST_DELAY))


def facts(message: "Message") -> dict[str, object]:
    """What the command is told in its environment."""
    told = message.metadata
    return {
        "STREAM": told.stream,
        "CONSUMER": told.consumer,
        "SUBJECT": message.subject,
        "SEQUENCE": told.sequence,
        "CONSUMER_SEQUENCE": told.consumer_sequence,
        "DELIVERED": told.delivered,
        "PENDING": told.pending,
        "TIME": format_time(told.time_ns),
        "SIZE": len(message.data),
        "HEADERS": json.dumps(message.headers, ensure_ascii=False),
    }
