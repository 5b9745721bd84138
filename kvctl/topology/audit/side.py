"""Reader for one side of an audit: all messages of a stream, or single ones at the leader, as permissions allow."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing, suppress
from typing import NamedTuple

from kvctl.errors import ConsumerNotFound, KvctlError, NoResponders
from kvctl.jetstream import direct_get, streams
from kvctl.jetstream.api import Api
from kvctl.jetstream.consumers.message import delivery
from kvctl.jetstream.consumers.ordered_consumer import read
from kvctl.jetstream.consumers.server_consumer import Selection
from kvctl.jetstream.direct_get import StoredMessage
from kvctl.jetstream.multi_get import last_of_each
from kvctl.kv.names import STREAM_PREFIX, SUBJECT_PREFIX, apart, is_plain, literal_filter
from kvctl.kv.read.listing import UNINDEXED
from kvctl.topology.survey.origin_lookup import PATIENCE, SILENT

MAX_BATCH_KEYS = 10_000
"""Keys that one request asks for."""


_OWN = "$JS."
"""Prefix of APIs that are not imported from another account."""

Messages = list[tuple[bytes, bytes, bytes, bytes]]
"""Subject, revision in digits, header, payload."""


class AuditReader(NamedTuple):
    """A stream, and the filters of the subjects to read."""

    api: Api
    stream: str
    subjects: tuple[str, ...] = (">",)
    by_name: bool = False
    """True if only names and single keys can be read: exports to other accounts may allow no more."""

    async def ready(self) -> AuditReader:
        """Return the reader, adapted to how the stream may be read. Raises StreamNotFound, and errors of access."""
        if self.api.prefix.startswith(_OWN):
            return self
        try:
            await self.api.call(f"CONSUMER.INFO.{self.stream}.kvctl-none", timeout=PATIENCE)
        except ConsumerNotFound:
            return self
        except SILENT:
            await streams.info(self.api, self.stream, timeout=PATIENCE)
            return self._replace(by_name=await self._answers())
        return self

    async def messages(self) -> AsyncGenerator[Messages, None]:
        """Yield the last message on each subject, in roughly the order of the stream; a subject may come twice."""
        if self.by_name:
            async with aclosing(self._named()) as batches:
                async for batch in batches:
                    yield batch
            return
        async for frames in read(self.api, self.stream, Selection(subjects=apart(self.subjects))):
            yield [(subject, revision_digits(reply), header, payload) for subject, reply, header, payload in frames]

    async def latest(self, subjects: Iterable[str]) -> dict[str, StoredMessage]:
        """Return the current last message on each of the subjects, from the leader, without missing ones."""
        wanted = list(dict.fromkeys(subjects))
        unindexed = [subject for subject in wanted if UNINDEXED.decode() in subject]
        plain = [subject for subject in wanted if is_plain(subject) and UNINDEXED.decode() not in subject]
        found = await self._read(Selection((">",), "all"), unindexed) if unindexed else {}
        for start in range(0, len(plain), MAX_BATCH_KEYS):
            found.update(await self._latest(plain[start : start + MAX_BATCH_KEYS]))
        for subject in set(wanted).difference(plain, unindexed):
            found |= await self._read(Selection((literal_filter(subject),)), [subject])
        return found

    async def at(self, revision: int) -> StoredMessage | None:
        """Return the message of a revision; None if there is none, or if it cannot be read."""
        with suppress(KvctlError):
            return await direct_get.from_leader(self.api, self.stream, seq=revision)
        return None

    async def _answers(self) -> bool:
        """Return whether single keys may be read."""
        name = self.stream.removeprefix(STREAM_PREFIX)
        with suppress(KvctlError):
            await direct_get.last(self.api, self.stream, f"{SUBJECT_PREFIX}{name}.kvctl-none", timeout=PATIENCE)
            return True
        return False

    async def _named(self) -> AsyncGenerator[Messages, None]:
        names: list[str] = []
        for text in apart(self.subjects):
            names += await streams.subjects(self.api, self.stream, text)
        for start in range(0, len(names), MAX_BATCH_KEYS):
            found = await self._latest(names[start : start + MAX_BATCH_KEYS])
            yield [
                (subject.encode("utf-8", "surrogateescape"), b"%d" % message.sequence, message.header, message.payload)
                for subject, message in found.items()
            ]

    async def _latest(self, subjects: Sequence[str]) -> dict[str, StoredMessage]:
        found = await last_of_each(self.api, self.stream, subjects, leader=not self.by_name)
        if len(found) < len(subjects):
            raise NoResponders(f"Some keys of `{self.stream}` got no answer")
        return {subject: message for subject, message in found.items() if message is not None}

    async def _read(self, selection: Selection, subjects: Sequence[str]) -> dict[str, StoredMessage]:
        """Return the last messages on subjects that requests would take for filters, cannot carry, or do not find."""
        wanted = {subject.encode("utf-8", "surrogateescape"): subject for subject in subjects}
        found = {}
        async for frames in read(self.api, self.stream, selection):
            for raw, reply, header, payload in frames:
                if (subject := wanted.get(raw)) is not None:
                    sequence, _, time_ns, _ = delivery(reply)
                    found[subject] = StoredMessage(self.stream, subject, sequence, time_ns, header, payload)
        return found


def revision_digits(reply: bytes) -> bytes:
    """Return the stream's sequence in digits: `delivery` without the other numbers."""
    return reply.rsplit(b".", 4)[1] if reply.count(b".") == 8 else reply.split(b".")[7]
