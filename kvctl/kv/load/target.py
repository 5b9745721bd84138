"""Target of a load: the stream that takes the bucket's writes, and its limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvctl.errors import BucketNotFound, BucketSealed, StreamNotFound, UsageError
from kvctl.jetstream import streams
from kvctl.jetstream.stream_info import StreamInfo
from kvctl.kv.bucket import Bucket
from kvctl.kv.load.rows import UNCHECKED_KEY, UNCHECKED_VALUE, PlainRows, Row
from kvctl.kv.resolve import Binding
from kvctl.kv.write.conditional_write import TTL_SINCE
from kvctl.tokens import encoded, unsafe


@dataclass(frozen=True, slots=True)
class Target:
    """Stream that takes the writes."""

    binding: Binding
    info: StreamInfo

    @property
    def history(self) -> int:
        """Number of entries kept per key."""
        return int(self.info["config"].get("max_msgs_per_subject", 0))

    def check(self, row: Row) -> None:
        """Raise UsageError for a row that this bucket cannot store."""
        config = self.info["config"]
        size, most = len(row.header) + len(row.value), config.get("max_msg_size", -1)
        if 0 < most < size:
            raise UsageError(f"The row takes {size} bytes, the bucket's limit is {most}")
        if row.header and b"\r\nNats-TTL:" in row.header:
            if not config.get("allow_msg_ttl"):
                remedy = f"allow them with `kvctl bucket edit {self.binding.bucket} --marker-ttl 1s`"
                raise UsageError(f"The bucket does not allow per-key TTLs; {remedy}")
            if self.binding.api.connection.server_version < TTL_SINCE:
                raise UsageError("The server would ignore the ttl")
        subject = encoded(self.binding.write_prefix + row.key)
        if size > self.unchecked or len(subject) > UNCHECKED_KEY or unsafe(subject):
            self.binding.api.connection.check_message(subject, row.header, row.value)

    @property
    def unchecked(self) -> int:
        """Bytes of a value that need no check."""
        return min(UNCHECKED_VALUE, self.binding.api.connection.max_payload)

    def acceptable(self, rows: Sequence[Row], rejected: Callable[[int, str], object]) -> Sequence[Row]:
        """Return the rows that this bucket can store; `rejected` is called with the lines of others and the reasons."""
        if isinstance(rows, PlainRows) and self._takes_all(rows):
            return rows
        kept = []
        for row in rows:
            try:
                self.check(row)
            except UsageError as error:
                rejected(row.line, error.message)
            else:
                kept.append(row)
        return kept

    def _takes_all(self, rows: PlainRows) -> bool:
        """Return True if no row has to be checked."""
        longest = max(map(len, rows.keys))
        limit = self.info["config"].get("max_msg_size", -1)
        return limit <= 0 and longest <= UNCHECKED_KEY and max(map(len, rows.values)) <= self.unchecked


async def target_of(bucket: Bucket, *, dry_run: bool = False) -> Target:
    """Find the stream that takes the bucket's writes. Raises BucketNotFound, ReadOnly for an aggregate, RefusedError.

    A dry run also accepts a read-only handle.
    """
    if not dry_run:
        bucket.check_writable(None)
    await bucket.readable()
    bucket.check_writes_go_somewhere()
    source = bucket.binding.source
    try:
        info = await streams.info(source.api, source.stream)
    except StreamNotFound:
        raise BucketNotFound(f"Bucket `{source.bucket}` does not exist") from None
    if info["config"].get("sealed"):
        raise BucketSealed(f"Bucket `{source.bucket}` is sealed: it is permanently read-only")
    return Target(source, info)
