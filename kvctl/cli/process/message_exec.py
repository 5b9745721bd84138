"""`--exec CMD` for messages: acknowledged if the command succeeds, redelivered after a delay if it fails."""

import asyncio
import json
from contextlib import suppress
from datetime import timedelta

import kvctl
from kvctl.cli.app.session import Session
from kvctl.cli.process.exec import Execution, variables_of
from kvctl.errors import KvctlError, NoServer, UnreachableError
from kvctl.jetstream.consumers import admin
from kvctl.units import format_time

LONGEST_DELAY = 300
"""Seconds, the longest delay before a message is redelivered whose command keeps failing."""
ACK_WAIT = 10.0
"""Seconds, the acknowledgement wait to assume if the consumer's configuration cannot be read."""


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
