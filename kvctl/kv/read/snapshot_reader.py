"""Read a bucket as of one revision while it is written, and report entries lost before they could be read.

reading = SnapshotReading(binding, filters, cut)
async for frames in reading.batches():    # the bucket's entries at the snapshot, in the order of revisions
    ...
async for messages in reading.missed():   # last values at the snapshot that only history has by now
    ...
reading.lost, reading.vanished            # entries that could not be read
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from operator import itemgetter

from kvctl.errors import KvctlError, NoResponders
from kvctl.jetstream import multi_get, streams
from kvctl.jetstream.consumers.message import delivery
from kvctl.jetstream.consumers.ordered_consumer import OrderedConsumer, read
from kvctl.jetstream.consumers.server_consumer import Selection
from kvctl.jetstream.direct_get import CannotAnswerMany, DirectRequest, StoredMessage
from kvctl.jetstream.multi_get import next_of_each
from kvctl.jetstream.stream_info import StreamInfo
from kvctl.kv.entry import any_tombstone, is_tombstone
from kvctl.kv.read.listing import (
    UNINDEXED,
    SubjectHashes,
    key_filter,
    may_be_unindexed,
    only_keys,
    unindexed,
    with_unindexed,
)
from kvctl.kv.resolve import Binding
from kvctl.wire import RawFrame

MAX_PASSES = 10
"""Maximum passes over the keys written since the snapshot; two without a new key end them earlier."""
KEYS_PER_REQUEST = 500
"""Keys whose earlier values are requested at once."""
_SUBJECT, _HEADER = itemgetter(0), itemgetter(2)


class SnapshotReading:
    """Reader of a bucket up to the snapshot revision, with a count that shows if entries disappeared before their turn.

    The number of entries at the snapshot is known if the binding's info dates from it. A short count means that entries
    were overwritten, expired or were removed: then the keys written since are checked.
    """

    def __init__(
        self,
        binding: Binding,
        filters: Sequence[str],
        cut: int,
        *,
        history: bool,
        deleted: bool = False,
        values: bool = True,
        first: int = 1,
        last: int | None = None,
        expected: int | None = None,
    ) -> None:
        """Prepare the reading. With `expected`, the number of entries at the snapshot, the binding's info may be newer.

        `first` and `last` allow leaving out entries below or above these revisions.
        """
        assert binding.info is not None
        self.lost: list[bytes] = []
        """Subjects that may lack entries, known after `missed`."""
        self.vanished = 0
        """Number of entries beyond those removed without a trace, known after `missed`."""
        self._binding = binding
        self._cut = cut
        self._stop = cut if last is None else min(last, cut)
        self._history = history
        self._deleted = deleted or history
        self._values = values
        self._filter = key_filter(binding, filters)
        self.subjects = self._filter.subjects
        state, config = binding.info["state"], binding.info["config"]
        self._newest = int(state["last_seq"])
        self._limit = config.get("max_msgs_per_subject", 0)
        self._all = history or self._limit == 1
        """True to read every message rather than the last of each subject."""
        self._first = first if self._all else 1
        self.expected = expected
        """Number of messages to expect, tombstones included."""
        if not filters and only_keys(binding, config) and int(state["last_seq"]) == cut and self._first <= 1:
            self.expected = state["messages"] if history else state.get("num_subjects", 0)
        self._expires = bool(config.get("max_age") or config.get("allow_msg_ttl"))
        self._seen = SubjectHashes()
        self._last = 0

    async def batches(self) -> AsyncGenerator[list[RawFrame]]:
        """Yield the entries at the snapshot in batches; markers only with `history` or `deleted`."""
        if not self._cut:
            return
        deliver = "by_start_sequence" if self._first > 1 else "all" if self._history else "last_per_subject"
        bounded = deliver != "last_per_subject" and self._stop < self._newest
        choice = await with_unindexed(self._binding, self._filter) if self._history else self._filter
        selection = Selection(
            subjects=choice.subjects,
            deliver=deliver,
            start=self._first if self._first > 1 else 0,
            headers_only=not self._values,
            last=self._stop if bounded else 0,
        )
        async with OrderedConsumer(self._binding.api, self._binding.stream, selection) as consumer:
            unchanged = consumer.info and consumer.info["state"]["last_seq"] == self._cut
            if self.expected is None and unchanged and self._stop == self._cut:
                self.expected = consumer.expected
            doubtful = consumer.info if self._may_be_unindexed(consumer.info) else None
            async for batch in consumer.batches():
                taken = self._up_to_cut(batch)
                if doubtful is not None:
                    taken = [frame for frame in taken if UNINDEXED not in frame[0]]
                self._seen.add(map(_SUBJECT, taken))
                if wanted := self.wanted(taken):
                    yield wanted
                if self._last >= self._stop:
                    break
        if doubtful is not None:
            rest = await unindexed(self._binding, doubtful, values=self._values, last=self._cut)
            if wanted := self.wanted(rest):
                yield wanted

    def _may_be_unindexed(self, info: StreamInfo | None) -> bool:
        """Return True if last messages of the complete bucket are read, and its index may not have all keys."""
        complete = self._filter.everything and self.subjects == (self._binding.subject(">"),)
        latest = not self._history and self._stop == self._cut
        return complete and latest and may_be_unindexed(self._binding, info)

    def _up_to_cut(self, batch: list[RawFrame]) -> list[RawFrame]:
        """Keep the messages up to the snapshot, without repetitions after a reconnect."""
        if not batch:
            return batch
        before, first = self._last, delivery(batch[0][1])[0]
        self._last = max(before, delivery(batch[-1][1])[0])
        if first > before and self._last <= self._cut:
            return batch
        return [frame for frame in batch if before < delivery(frame[1])[0] <= self._cut]

    def wanted(self, frames: list[RawFrame]) -> list[RawFrame]:
        """Return the messages that were requested."""
        if not self._deleted and any_tombstone(map(_HEADER, frames)):
            frames = [frame for frame in frames if not is_tombstone(frame[2])]
        return self._filter.of(frames)

    async def missed(self) -> AsyncGenerator[list[StoredMessage]]:
        """Yield last messages at the snapshot that the reading missed and history still has: none with `history`.

        Afterwards `lost` and `vanished` are known.
        """
        if len(self._seen) == self.expected:
            return
        late = await self._written_since()
        seen = self._seen.among(late.hashes)
        names = [name for name in late.counts if self._filter.takes(name)]
        if not self._history:
            names = [name for name in names if not seen[hash(name)]]
            found: set[bytes] = set()
            async with aclosing(self._last_at_cut(names)) as chunks:
                async for messages in chunks:
                    found.update(message.subject.encode(errors="surrogateescape") for message in messages)
                    yield messages
            if len(self._seen) + len(found) == self.expected:
                return
            names = [name for name in names if name not in found]
        names = await self._pushed_out(names, late, seen)
        if self.expected is not None and not names and not self._expires:
            self.vanished = max(self.expected - len(self._seen), 0)
        self.lost = sorted(names)

    async def _pushed_out(self, names: list[bytes], late: _Late, seen: Counter[int]) -> list[bytes]:
        """Return the subjects where writes since the snapshot may have evicted entries: full now, or purged."""
        out = {name for name in names if name in late.purged}
        undecided = [name for name in names if name not in out and seen[hash(name)] < self._limit]
        out.update(name for name in undecided if self._limit <= late.counts[name] + seen[hash(name)])
        undecided = [name for name in undecided if name not in out]
        if undecided:
            out.update((await self._full()).intersection(undecided))
        return [name for name in names if name in out]

    async def _full(self) -> set[bytes]:
        """Return the subjects that have as many entries as they may: of those counted, some may have been deleted."""
        counts: dict[str, int] = {}
        with suppress(KvctlError):  # no permission to ask: the counts have to do
            for subject in self.subjects:
                counts |= await streams.subjects(self._binding.api, self._binding.stream, subject)
        return {name.encode(errors="surrogateescape") for name, count in counts.items() if count >= self._limit}

    async def _written_since(self) -> _Late:
        """Collect subjects written after the snapshot, repeatedly: a key overwritten during a pass may escape it."""
        late, start, quiet = _Late(), self._cut + 1, 0
        for _ in range(MAX_PASSES):
            known = len(late.counts)
            selection = Selection(subjects=self.subjects, deliver="by_start_sequence", start=start, headers_only=True)
            before = start
            async for batch in read(self._binding.api, self._binding.stream, selection):
                late.add(batch)
                start = delivery(batch[-1][1])[0] + 1
            quiet = quiet + 1 if len(late.counts) == known else 0
            if start == before or quiet == 2:
                break
        return late

    async def _last_at_cut(self, subjects: list[bytes]) -> AsyncGenerator[list[StoredMessage]]:
        """Yield last messages at the snapshot that are still stored; keys that cannot be requested may be lost."""
        if self._limit == 1:
            return
        for start in range(0, len(subjects), KEYS_PER_REQUEST):
            asked = [subject.decode(errors="surrogateescape") for subject in subjects[start : start + KEYS_PER_REQUEST]]
            try:
                messages = await self._up_to(asked)
            except KvctlError:
                return
            yield messages

    async def _up_to(self, subjects: list[str]) -> list[StoredMessage]:
        request = DirectRequest(last_of=tuple(subjects), up_to_sequence=self._cut)
        messages: list[StoredMessage] = []
        try:
            async with aclosing(multi_get.read(self._binding.api, self._binding.stream, request)) as pages:
                async for page in pages:
                    messages += page.messages
        except (CannotAnswerMany, NoResponders):
            return await self._up_to_by_leader(subjects)
        return [message for message in messages if message.subject in set(subjects)]

    async def _up_to_by_leader(self, subjects: list[str]) -> list[StoredMessage]:
        """Return the same, in as many rounds as a subject has messages, each with one request per subject."""
        found: dict[str, StoredMessage] = {}
        starts = dict.fromkeys(subjects, 1)
        while starts:
            answers = await next_of_each(self._binding.api, self._binding.stream, starts)
            if len(answers) < len(starts):
                raise NoResponders("The stream has no leader")
            earlier = {subject: one for subject, one in answers.items() if one and one.sequence <= self._cut}
            found |= earlier
            starts = {subject: one.sequence + 1 for subject, one in earlier.items()}
        return [*found.values()]


class _Late:
    """Subjects written after the snapshot."""

    def __init__(self) -> None:
        self.counts: Counter[bytes] = Counter()
        self.purged: set[bytes] = set()
        self.hashes: set[int] = set()

    def add(self, batch: list[RawFrame]) -> None:
        subjects = [frame[0] for frame in batch]
        self.counts.update(subjects)
        self.hashes.update(map(hash, subjects))
        self.purged.update(frame[0] for frame in batch if b"\r\nNats-Rollup:" in frame[2])
