"""Batch read of `nats-kv`: planned in one of Spark's processes, run in others."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from kvctl.errors import HistoryLost, StreamReplaced
from kvctl.jetstream import multi_get, streams
from kvctl.jetstream.api import Api
from kvctl.jetstream.consumers.message import delivery
from kvctl.jetstream.consumers.ordered_consumer import OrderedConsumer
from kvctl.jetstream.consumers.server_consumer import Selection
from kvctl.jetstream.direct_get import StoredMessage
from kvctl.kv.bucket import Bucket
from kvctl.kv.entry import any_tombstone, is_tombstone
from kvctl.kv.names import is_plain
from kvctl.kv.read.listing import KeyFilter, key_filter, with_unindexed
from kvctl.kv.read.snapshot_reader import SnapshotReading
from kvctl.kv.resolve import Binding, assumed, with_info
from kvctl.phrases import quoted
from kvctl.pipeline.options import SourceOptions
from kvctl.pipeline.read.arrow_decoder import Decoder
from kvctl.pipeline.read.columns import check_schema
from kvctl.pipeline.read.offsets import Revisions
from kvctl.pipeline.read.snapshot_plan import LATEST, Cut, Keys, Part, ReadPlan, names_of, plan
from kvctl.pipeline.worker_connection import connected, iterate, run
from kvctl.wire import RawFrame

if TYPE_CHECKING:
    from kvctl.pipeline.read.stream_reader import LossWatch

ROWS, BYTES = 10_000, 8 << 20
"""Maximum size of a batch, plus one read of the connection."""
KEYS_PER_REQUEST = 500
"""Number of overwritten keys requested together."""
_HEADER, _PAYLOAD = itemgetter(2), itemgetter(3)


class PartReading:
    """Reads the parts of one cut. `values` are left out if no column needs them."""

    def __init__(
        self, api: Api, cut: Cut, options: SourceOptions, decoder: Decoder, watch: LossWatch | None = None
    ) -> None:
        self._watch = watch
        self._api = api if api.prefix == cut.api_prefix else api.at(cut.api_prefix)
        self._cut = cut
        self._options = options
        self._decoder = decoder
        self._values = "value" in decoder.schema.names
        self._history = options.mode != "latest"
        self._deleted = self._history or options.include_deleted

    async def batches(self, part: Part) -> AsyncGenerator[pa.RecordBatch, None]:
        """Yield the part's rows. Raises StreamReplaced; HistoryLost if that is preferred over newer entries."""
        binding = await self._binding()
        if isinstance(part, Revisions):
            batches = self._gathered(self._range(binding, part))
        else:
            batches = self._of_keys(binding, part)
        async with aclosing(batches) as found:
            async for batch in found:
                yield batch

    async def _binding(self) -> Binding:
        """Return the stream that the read was planned for. Raises StreamReplaced."""
        cut = self._cut
        info = await streams.info(self._api, cut.stream)
        if info["created"] != cut.created:
            raise StreamReplaced(f"Bucket `{cut.bucket}` was deleted and recreated while it was being read")
        return with_info(assumed(self._api, cut.bucket, cut.stream, cut.prefix), info)

    async def _gathered(self, frames: AsyncGenerator[list[RawFrame], None]) -> AsyncGenerator[pa.RecordBatch, None]:
        """Combine frames, which come by the hundred, into batches of a useful size."""
        held: list[RawFrame] = []
        size = 0
        async with aclosing(frames) as found:
            async for some in found:
                held += some
                size += sum(map(len, map(_PAYLOAD, some)))
                if len(held) >= ROWS or size >= BYTES:
                    yield self._decoder.of_frames(held)
                    held, size = [], 0
        if held:
            yield self._decoder.of_frames(held)

    # -- a range of revisions ------------------------------------------------------------------------------

    async def _range(self, binding: Binding, part: Revisions) -> AsyncGenerator[list[RawFrame], None]:
        wanted = await with_unindexed(binding, key_filter(binding, self._cut.filters))
        selection = Selection(wanted.subjects, "by_start_sequence", part.first, not self._values, part.last)
        came = reached = 0
        async with OrderedConsumer(self._api, binding.stream, selection) as consumer:
            async for batch in consumer.batches():
                if not batch:
                    break
                frames = _between(batch, reached, part.last)
                reached = max(reached, delivery(batch[-1][1])[0])
                came += len(frames)
                if self._watch:
                    await self._watch.take(frames)
                yield self._wanted_of(frames, wanted)
                if reached >= part.last:
                    break
        if self._watch:
            await self._watch.look()
        if part.expected is not None and came < part.expected:
            raise self._overwritten([], part.expected - came)

    def _wanted_of(self, frames: list[RawFrame], wanted: KeyFilter) -> list[RawFrame]:
        if not self._deleted and any_tombstone(map(_HEADER, frames)):
            frames = [frame for frame in frames if not is_tombstone(frame[2])]
        return wanted.of(frames)

    # -- by key -------------------------------------------------------------------------------------------

    async def _of_keys(self, binding: Binding, part: Keys) -> AsyncGenerator[pa.RecordBatch, None]:
        cut = self._cut
        reading = SnapshotReading(
            binding,
            part.filters,
            cut.revision,
            history=self._history,
            deleted=self._deleted,
            values=self._values,
            first=cut.first,
            last=cut.last,
            expected=part.expected,
        )
        async with aclosing(self._gathered(reading.batches())) as batches:
            async for batch in batches:
                yield batch
        if reading.expected is None and await streams.last_sequence(self._api, cut.stream) == cut.revision:
            return  # nothing was written since
        async with aclosing(reading.missed()) as late:
            async for messages in late:
                if chosen := self._chosen(messages):
                    yield self._decoder.of_messages(chosen)
        if reading.lost or (reading.vanished and self._options.on_evicted == "fail"):
            async with aclosing(self._newer(binding, reading)) as batches:
                async for batch in batches:
                    yield batch

    async def _newer(self, binding: Binding, reading: SnapshotReading) -> AsyncGenerator[pa.RecordBatch, None]:
        """Read keys that were overwritten before they were read. Raises HistoryLost if newer entries are not wanted."""
        if self._options.on_evicted == "fail":
            raise self._overwritten(list(map(self._key, reading.lost)), reading.vanished)
        if self._history:
            async with aclosing(self._gathered(self._since_cut(binding, reading))) as batches:
                async for batch in batches:
                    yield batch
            return
        plain = [subject for subject in reading.lost if is_plain(self._key(subject))]
        for start in range(0, len(plain), KEYS_PER_REQUEST):
            subjects = [subject.decode() for subject in plain[start : start + KEYS_PER_REQUEST]]
            found = await multi_get.last_of_each(self._api, binding.stream, subjects, leader=True)
            if chosen := self._chosen([message for message in found.values() if message is not None]):
                yield self._decoder.of_messages(chosen)
        if others := set(reading.lost).difference(plain):  # cannot be requested
            last = {frame[0]: frame async for frames in self._since_cut(binding, reading) for frame in frames}
            if rows := self._wanted_of([last[name] for name in others & last.keys()], KeyFilter(())):
                yield self._decoder.of_frames(rows)

    async def _since_cut(self, binding: Binding, reading: SnapshotReading) -> AsyncGenerator[list[RawFrame], None]:
        """Yield all newer revisions of the keys that lost some."""
        lost, start = set(reading.lost), self._cut.revision + 1
        selection = Selection(
            subjects=reading.subjects, deliver="by_start_sequence", start=start, headers_only=not self._values
        )
        reached = 0
        async with OrderedConsumer(self._api, binding.stream, selection) as consumer:
            async for batch in consumer.batches():
                if batch:
                    yield [frame for frame in _between(batch, reached, LATEST) if frame[0] in lost]
                    reached = max(reached, delivery(batch[-1][1])[0])

    def _chosen(self, messages: Sequence[StoredMessage]) -> list[StoredMessage]:
        """Return the messages that belong to the result."""
        return [message for message in messages if self._deleted or not is_tombstone(message.header)]

    def _key(self, subject: bytes) -> str:
        return subject[len(self._cut.prefix.encode()) :].decode(errors="surrogateescape")

    def _overwritten(self, keys: Sequence[str], more: int = 0) -> HistoryLost:
        others = more + len(keys) - len(keys[:10])
        what = " and ".join(filter(None, [quoted(keys[:10]), f"{others} entries" if others else ""]))
        return HistoryLost(
            f"Bucket `{self._cut.bucket}` changed while it was read: at revision {self._cut.revision} "
            f"{what} could no longer be read",
            keys=list(keys),
            hint='Read it again, keep more history, or accept newer entries with `.option("onEvicted", "newer")`',
        )


def _between(frames: list[RawFrame], after: int, last: int) -> list[RawFrame]:
    """Return those of ordered messages whose sequence is above `after`, up to `last`."""
    if not frames or (delivery(frames[0][1])[0] > after and delivery(frames[-1][1])[0] <= last):
        return frames
    first = bisect_right(frames, after, key=_sequence)
    return frames[first : bisect_right(frames, last, key=_sequence)]


def _sequence(frame: RawFrame) -> int:
    return delivery(frame[1])[0]


@dataclass(frozen=True)
class KvPartition(InputPartition):
    """One task's part of a cut."""

    cut: Cut
    part: Part


class KvReader(DataSourceReader):
    """Reads a bucket, or several, as of their last revisions when Spark plans the read."""

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        """Raises UsageError for an unknown column."""
        check_schema(schema)
        self._schema = schema
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Return the tasks' parts. Raises BucketNotFound, NoServer and other connection errors."""
        return run(self._parts())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part, in Arrow batches; if closed early it leaves nothing on the server."""
        if isinstance(partition, KvPartition):  # there are none if there is nothing to read
            cut = partition.cut
            decoder = Decoder(self._schema, cut.bucket, cut.prefix, cut.origin)
            yield from iterate(partial(read_part, self._options, partition, decoder))

    async def planned(self, bucket: Bucket, buckets: int = 1) -> tuple[ReadPlan, list[KvPartition]]:
        """Return the plan of one of several buckets and its tasks' parts. Raises as `partitions`."""
        planned = await plan(bucket, self._options.shared(buckets))
        parts = await planned.parts()
        return planned, [KvPartition(planned.cut, part) for part in parts]

    async def _parts(self) -> list[InputPartition]:
        async with connected(self._options) as client:
            names = await names_of(client.api, self._options)
            return [part for name in names for part in (await self.planned(client.bucket(name), len(names)))[1]]


async def read_part(
    options: SourceOptions, partition: KvPartition, decoder: Decoder
) -> AsyncGenerator[pa.RecordBatch, None]:
    """Yield what the decoder makes of a part's entries, over a connection of its own."""
    async with connected(options) as client:
        reading = PartReading(client.api, partition.cut, options, decoder)
        async with aclosing(reading.batches(partition.part)) as batches:
            async for batch in batches:
                yield batch
