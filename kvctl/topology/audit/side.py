"""One side of an audit: all that a stream holds, and its last entries again at the leader, as permissions allow."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from kvctl.errors import (
    ConsumerNotFound,
    JetStreamDisabled,
    KvctlError,
    NoResponders,
    PermissionDenied,
    RequestTimeout,
)
from kvctl.jetstream import streams
from kvctl.jetstream.api import Api
from kvctl.jetstream.consumers.delivery import delivery
from kvctl.jetstream.consumers.ordered_consumer import Selection, read
from kvctl.jetstream.direct import direct_get
from kvctl.jetstream.direct.direct_get import StoredMessage
from kvctl.jetstream.direct.per_subject import last_of_each
from kvctl.kv.names import STREAM_PREFIX, SUBJECT_PREFIX, is_plain, literal_filter, overlapping
from kvctl.topology.discover.origin_lookup import PATIENCE

AT_ONCE = 10_000
"""Keys that are asked for in one go."""

_SILENT = (JetStreamDisabled, NoResponders, RequestTimeout, PermissionDenied)

_OWN = "$JS."
"""What the prefix of an API begins with that is no import of another account's."""

Messages = list[tuple[bytes, bytes, bytes, bytes]]
"""Subject, revision in digits, header, payload."""


@dataclass(frozen=True, slots=True)
class Side:
    """A stream, and which of its subjects count."""

    api: Api
    stream: str
    subjects: tuple[str, ...] = (">",)
    by_name: bool = False
    """Whether it can only be asked for names and single keys: exports to other accounts may allow no more."""

    async def ready(self) -> Side:
        """The same, knowing how it may be read. Raises StreamNotFound, and what is raised where it may not."""
        if self.api.prefix.startswith(_OWN):
            return self
        try:
            await self.api.call(f"CONSUMER.INFO.{self.stream}.kvctl-none", timeout=PATIENCE)
        except ConsumerNotFound:
            return self
        except _SILENT:
            await streams.info(self.api, self.stream, timeout=PATIENCE)
            return replace(self, by_name=await self._answers())
        return self

    async def messages(self) -> AsyncGenerator[Messages, None]:
        """The last message on each subject, in about the order of the stream; a subject may come twice."""
        if self.by_name:
            async with aclosing(self._named()) as batches:
                async for batch in batches:
                    yield batch
            return
        async for frames in read(self.api, self.stream, Selection(subjects=self._apart())):
            yield [(subject, _revision(reply), header, payload) for subject, reply, header, payload in frames]

    async def latest(self, subjects: Iterable[str]) -> dict[str, StoredMessage]:
        """The last message on each of the subjects now, from the leader; those that have none are left out."""
        wanted = list(dict.fromkeys(subjects))
        plain = [subject for subject in wanted if is_plain(subject)]
        found: dict[str, StoredMessage] = {}
        for start in range(0, len(plain), AT_ONCE):
            found.update(await self._latest(plain[start : start + AT_ONCE]))
        for subject in wanted:
            if not is_plain(subject) and (message := await self._literal(subject)) is not None:
                found[subject] = message
        return found

    async def at(self, revision: int) -> StoredMessage | None:
        """The message of a revision; None where there is none, or where it may not be asked."""
        try:
            return await direct_get.from_leader(self.api, self.stream, seq=revision)
        except KvctlError:
            return None

    async def _answers(self) -> bool:
        """Whether single keys may be read."""
        name = self.stream.removeprefix(STREAM_PREFIX)
        try:
            await direct_get.last(self.api, self.stream, f"{SUBJECT_PREFIX}{name}.kvctl-none", timeout=PATIENCE)
        except KvctlError:
            return False
        return True

    async def _named(self) -> AsyncGenerator[Messages, None]:
        names: list[str] = []
        for text in self._apart():
            names += await streams.subjects(self.api, self.stream, text)
        for start in range(0, len(names), AT_ONCE):
            found = await self._latest(names[start : start + AT_ONCE])
            yield [
                (subject.encode("utf-8", "surrogateescape"), b"%d" % message.sequence, message.header, message.payload)
                for subject, message in found.items()
            ]

    async def _latest(self, subjects: Sequence[str]) -> dict[str, StoredMessage]:
        found = await last_of_each(self.api, self.stream, subjects, leader=not self.by_name)
        if len(found) < len(subjects):
            raise NoResponders(f"Nobody answers for all keys of `{self.stream}`")
        return {subject: message for subject, message in found.items() if message is not None}

    async def _literal(self, subject: str) -> StoredMessage | None:
        """The last message on a subject that requests would take for a filter, or cannot carry."""
        raw, found = subject.encode("utf-8", "surrogateescape"), None
        async for frames in read(self.api, self.stream, Selection(subjects=(literal_filter(subject),))):
            for frame in frames:
                if frame[0] == raw:
                    sequence, _, time_ns, _ = delivery(frame[1])
                    found = StoredMessage(self.stream, subject, sequence, time_ns, frame[2], frame[3])
        return found

    def _apart(self) -> tuple[str, ...]:
        """Filters for one consumer: servers refuse overlapping ones (10138)."""
        return (">",) if overlapping(list(self.subjects)) else self.subjects


def _revision(reply: bytes) -> bytes:
    """The stream's sequence in digits: `delivery` without the numbers that are not needed."""
    return reply.rsplit(b".", 4)[1] if reply.count(b".") == 8 else reply.split(b".")[7]
