"""Finite listings of a bucket: key names, latest entries, history; a key that lives throughout appears once."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import AsyncGenerator, Container, Iterable, Iterator, Sequence
from contextlib import aclosing, suppress
from math import inf
from typing import IO, NamedTuple, TypeVar

from kvctl.errors import KvctlError, PermissionDenied
from kvctl.jetstream import streams
from kvctl.jetstream.consumers import admin
from kvctl.jetstream.consumers.message import delivery
from kvctl.jetstream.consumers.ordered_consumer import OrderedConsumer, read
from kvctl.jetstream.consumers.server_consumer import Selection, unchanged
from kvctl.jetstream.stream_info import StreamConfig, StreamInfo
from kvctl.kv.entry import Entry, any_tombstone, from_frames, is_tombstone, newer
from kvctl.kv.names import FilterTree, check_filter, check_literal, disjoint, literal_filter, overlapping
from kvctl.kv.resolve import Binding
from kvctl.wire import RawFrame

Item = TypeVar("Item")

LATE = 1 << 15
"""Messages that wait for the end; each takes some 500 bytes."""
HELD = 1 << 18
"""Hashes that are held in memory; each takes eight bytes, where a set of names would take a hundred."""


UNINDEXED = b"\x7f"
"""Byte of keys that servers leave out of their index."""
COUNTS = 3
"""How often messages are counted until none is written in the meantime."""


class KeyFilter(NamedTuple):
    """Selection of keys: the subjects to read for them, and the check that is left for the messages."""

    subjects: tuple[str, ...]
    filters: FilterTree | None = None
    keys: frozenset[str] = frozenset()
    cut: int = 0
    """Bytes of a subject before the key."""

    @property
    def everything(self) -> bool:
        """True if all messages of the subjects are selected."""
        return self.filters is None and not self.keys

    def takes(self, subject: bytes) -> bool:
        """Return True if the key of the subject is selected."""
        key = subject[self.cut :].decode(errors="surrogateescape")
        return self.everything or key in self.keys or (self.filters is not None and self.filters.selects(key))

    def of(self, frames: list[RawFrame]) -> list[RawFrame]:
        """Return the messages of selected keys."""
        return frames if self.everything else [frame for frame in frames if self.takes(frame[0])]


def key_filter(binding: Binding, texts: Sequence[str], *, literal: bool = False) -> KeyFilter:
    """Return the selection by filters, or with `literal` of non-conforming keys; everything without any.

    Servers refuse filters that overlap partially (10138): then everything is read and filtered here. A non-conforming
    key, taken literally, may come with others that its subject matches as a wildcard.
    """
    filters = [literal_filter(check_literal(text)) if literal else check_filter(text) for text in texts]
    wanted = disjoint(filters) or [">"]
    overlap, cut = overlapping(wanted), len(binding.prefix.encode())
    subjects = (binding.prefix + ">",) if overlap else tuple(binding.prefix + text for text in wanted)
    if literal:
        return KeyFilter(subjects, keys=frozenset(texts), cut=cut)
    return KeyFilter(subjects, FilterTree(wanted) if overlap else None, cut=cut)


async def each(batches: AsyncGenerator[list[Item], None]) -> AsyncGenerator[Item, None]:
    """Yield the items of batches one by one."""
    async with aclosing(batches) as found:
        async for batch in found:
            for item in batch:
                yield item


async def key_batches(
    binding: Binding, filters: Sequence[str], *, deleted: bool = False
) -> AsyncGenerator[list[bytes], None]:
    """Yield names of live keys (with `deleted` of all keys) in batches, none twice.

    A name is the bytes after the bucket's prefix. Names of keys written since the binding's info come last.
    """
    wanted = key_filter(binding, filters)
    async with aclosing(_last_of_each(binding, wanted, deleted=deleted, values=False)) as batches:
        async for frames in batches:
            yield [frame[0][wanted.cut :] for frame in frames]


async def entry_batches(
    binding: Binding, filters: Sequence[str], *, deleted: bool = False, values: bool = True, literal: bool = False
) -> AsyncGenerator[list[Entry], None]:
    """Yield the latest entry of each key in batches, none twice; without `values`, only what the headers say."""
    wanted = key_filter(binding, filters, literal=literal)
    async with aclosing(_last_of_each(binding, wanted, deleted=deleted, values=values)) as batches:
        async for frames in batches:
            yield from_frames(binding.bucket, wanted.cut, frames)


async def history_batches(
    binding: Binding,
    filters: Sequence[str],
    *,
    start: int | None = None,
    headers_only: bool = False,
    literal: bool = False,
) -> AsyncGenerator[list[Entry], None]:
    """Yield every stored entry from the revision `start` on, oldest first, deletions included."""
    wanted, last = await with_unindexed(binding, key_filter(binding, filters, literal=literal)), 0
    selection = Selection(subjects=wanted.subjects, deliver="all", headers_only=headers_only)
    if start is not None:
        selection = selection._replace(deliver="by_start_sequence", start=start)
    async with OrderedConsumer(binding.api, binding.stream, selection) as consumer:
        async for batch in consumer.batches():
            if found := newer(from_frames(binding.bucket, wanted.cut, wanted.of(batch)), last):
                last = found[-1].revision
                yield found


async def _last_of_each(
    binding: Binding, wanted: KeyFilter, *, deleted: bool, values: bool
) -> AsyncGenerator[list[RawFrame], None]:
    """Yield the last message of each key, none twice. Without values, later ones than the binding's info wait."""
    selection = Selection(subjects=wanted.subjects, headers_only=not values)
    async with OrderedConsumer(binding.api, binding.stream, selection) as consumer:
        distinct = Distinct(consumer, _last_before(binding, consumer), waiting=not values)
        complete = wanted.everything and wanted.subjects == (binding.subject(">"),)
        doubtful = consumer.info if complete and may_be_unindexed(binding, consumer.info) else None
        async for batch in consumer.batches():
            frames = wanted.of(batch)
            if doubtful is not None and _lists_all(doubtful["config"]):
                frames = [frame for frame in frames if UNINDEXED not in frame[0]]
            if not deleted and any_tombstone([frame[2] for frame in frames]):
                frames = [frame for frame in frames if not is_tombstone(frame[2])]
            if fresh := distinct.pick(batch, frames):
                yield fresh
    if fresh := distinct.rest():
        yield fresh
    if doubtful is not None and (rest := await unindexed(binding, doubtful, values=values)):
        yield [frame for frame in rest if deleted or not is_tombstone(frame[2])]


async def unindexed(binding: Binding, info: StreamInfo, *, values: bool = True, last: float = inf) -> list[RawFrame]:
    """Return the last messages, up to a revision, of keys with the byte 0x7f, by reading the complete bucket.

    Servers leave them out of their index of subjects (2.15), and so out of lists of last messages.
    """
    found: dict[bytes, RawFrame] = {}
    if may_be_unindexed(binding, info) and await _is_index_short(binding, info):
        # A reading of the bucket's subjects ends with the last indexed message.
        selection = Selection(subjects=(">",), deliver="all", headers_only=not values)
        with suppress(PermissionDenied):
            async for batch in read(binding.api, binding.stream, selection):
                odd = (frame for frame in batch if UNINDEXED in frame[0])
                found |= {frame[0]: frame for frame in odd if delivery(frame[1])[0] <= last}
    return sorted(found.values(), key=lambda frame: delivery(frame[1])[0])


async def with_unindexed(binding: Binding, wanted: KeyFilter) -> KeyFilter:
    """Return the selection of all messages, with subjects that let servers skip none if their index is short."""
    complete = wanted.everything and wanted.subjects == (binding.subject(">"),)
    info = binding.info
    if complete and info and may_be_unindexed(binding, info) and await _is_index_short(binding, info):
        return wanted._replace(subjects=(">",))
    return wanted


def may_be_unindexed(binding: Binding, info: StreamInfo | None) -> bool:
    """Return True if a stream that has only keys has more messages than subjects in its index."""
    if info is None or not only_keys(binding, info["config"]):
        return False
    return bool(info["state"]["messages"] > info["state"].get("num_subjects", 0))


async def leaves_out(binding: Binding) -> bool:
    """Return True if reads by the index miss keys of the bucket: those with the byte 0x7f. Raises StreamNotFound."""
    info = await streams.info(binding.api, binding.stream)
    return may_be_unindexed(binding, info) and await _is_index_short(binding, info)


async def _is_index_short(binding: Binding, info: StreamInfo) -> bool:
    """Return True if the index does not have all messages; False if that cannot be found out during writes."""
    if _lists_all(info["config"]):
        return True
    with suppress(KvctlError):  # permissions, or deleted in the meantime
        for _ in range(COUNTS):
            count = await admin.count(binding.api, binding.stream, filter_subject=binding.subject(">"))
            before, info = info, await streams.info(binding.api, binding.stream)
            if unchanged(before["state"], info["state"]):
                return count < info["state"]["messages"]
    return False


def _lists_all(config: StreamConfig) -> bool:
    """Return True if a list of last messages is made of all messages, those of unindexed keys included."""
    return bool(config.get("max_msgs_per_subject") == 1)


def only_keys(binding: Binding, config: StreamConfig) -> bool:
    """Return whether all messages of the stream are keys: an aggregate or another tool's stream may have others."""
    subjects = config.get("subjects") or ()
    return not (config.get("sources") or config.get("subject_transform")) and all(
        subject.startswith(binding.prefix) for subject in subjects
    )


def _last_before(binding: Binding, consumer: OrderedConsumer) -> int:
    """Return a revision that the bucket had before the consumer was created; 0 if unknown, as after a recreation."""
    before, now = binding.info, consumer.info
    if before is None or now is None or before["created"] != now["created"]:
        return 0
    last = int(before["state"]["last_seq"])
    return last if last <= now["state"]["last_seq"] else 0


class Distinct:
    """Picker of the first message of each subject.

    At the stream's leader no subject comes twice up to the last sequence at the start, so only hashes are kept. Later
    messages wait for the end, to be compared with all that came before. If there are many, or they may not wait, or a
    list starts over or is read at a replica, a set of all hashes is held: some 60 bytes per subject.
    """

    def __init__(self, consumer: OrderedConsumer, end: int, *, waiting: bool) -> None:
        """`end` is the stream's last sequence before the consumer was created; 0 if unknown."""
        self._consumer = consumer
        self._end = end
        self._late_at_most = LATE if waiting else 0
        self._last = 0
        self._came = SubjectHashes()
        self._all: set[int] | None = None
        self._late: dict[bytes, RawFrame] = {}

    def pick(self, batch: Sequence[RawFrame], wanted: list[RawFrame]) -> list[RawFrame]:
        """Return the wanted messages of the batch that are the first of their subjects, except for those that wait."""
        if not batch:
            return []
        before, first, self._last = self._last, delivery(batch[0][1])[0], delivery(batch[-1][1])[0]
        if self._all is None:
            subjects = [frame[0] for frame in wanted]
            doubtful = not self._end or self._consumer.resumed or self._consumer.misplaced
            repeated = first <= before or len(set(subjects)) < len(subjects)  # by servers, in a rare race
            if not doubtful and not repeated and self._last <= self._end:
                self._came.add(subjects)
                return wanted
            self._late.update(zip(subjects, wanted, strict=True))
            if not doubtful and len(self._late) <= self._late_at_most:
                return []
            self._all, wanted, self._late = self._came.all(), list(self._late.values()), {}
        return _unknown(wanted, self._all)

    def rest(self) -> list[RawFrame]:
        """Return those that waited, and have not come before."""
        again = self._came.among(set(map(hash, self._late)))
        return [frame for subject, frame in self._late.items() if hash(subject) not in again]


def _unknown(wanted: list[RawFrame], known: set[int]) -> list[RawFrame]:
    """Return the messages of unknown subjects, which are known from now on."""
    fresh = []
    for frame in wanted:
        if (hashed := hash(frame[0])) not in known:
            known.add(hashed)
            fresh.append(frame)
    return fresh


class SubjectHashes:
    """Hashes of subjects, repeated ones included. Where no file can be written, all stay in memory."""

    def __init__(self) -> None:
        self._held = array("q")
        self._limit: float = HELD
        self._file: IO[bytes] | None = None
        self._filed = 0

    def __len__(self) -> int:
        return self._filed + len(self._held)

    def add(self, subjects: Iterable[bytes]) -> None:
        """Add subjects, which are not kept themselves."""
        self._held.extend(map(hash, subjects))
        if len(self._held) >= self._limit:
            try:
                self._spill()
            except OSError:
                self._limit = inf

    def among(self, wanted: Container[int]) -> Counter[int]:
        """Count those that are among the wanted hashes. Raises OSError if the file cannot be read."""
        return Counter(value for block in self._blocks() for value in block if value in wanted)

    def all(self) -> set[int]:
        """Return all of them: some 60 bytes each. Raises OSError if the file cannot be read."""
        return {value for block in self._blocks() for value in block}

    def _spill(self) -> None:
        if self._file is None:
            import tempfile

            self._file = tempfile.TemporaryFile(prefix="kvctl-", buffering=0)  # noqa: SIM115 - as long as the object
        self._file.seek(self._filed * self._held.itemsize)
        block = memoryview(self._held).cast("B")
        while block:
            block = block[self._file.write(block) :]
        self._filed += len(self._held)
        self._held = array("q")

    def _blocks(self) -> Iterator[array[int]]:
        if self._file is not None:
            self._file.seek(0)
            for start in range(0, self._filed, HELD):
                block = array("q")
                block.fromfile(self._file, min(HELD, self._filed - start))
                yield block
        yield self._held
