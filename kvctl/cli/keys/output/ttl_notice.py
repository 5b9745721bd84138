"""What the ttl of a key, of its bucket and a history do to each other, as warnings."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from kvctl.cli.app.session import Session
from kvctl.errors import KvctlError
from kvctl.units import format_duration

if TYPE_CHECKING:
    from kvctl.kv.bucket import Bucket
    from kvctl.kv.entry import Entry

NAMED = 10
"""Keys that a warning names."""


async def warn_of_return(session: Session, bucket: "Bucket", keys: Sequence[str]) -> None:
    """Warn of keys, just written with a ttl, whose earlier values come back after it; silent where none can be read."""
    from kvctl.kv.write.expiry import returning

    with suppress(KvctlError):
        found = await returning(bucket, keys)
        for entry in found[:NAMED]:
            session.warn(
                f"When `{entry.key}` expires, its value at revision {entry.revision} comes back, since bucket "
                f"`{bucket.name}` has a history"
            )
        if len(found) > NAMED:
            session.warn(f"So it is with {len(found) - NAMED} more keys")


async def warn_of_other_life(session: Session, bucket: "Bucket", ttls: Mapping[str, timedelta]) -> None:
    """Warn of keys, just written with a ttl, that live longer or shorter; silent where that cannot be read."""
    from kvctl.kv.write.expiry import bucket_ttl

    with suppress(KvctlError):
        most = await bucket_ttl(bucket)
        entries = await bucket.get_many(list(ttls), leader=True)
        living = [entry for entry in entries if entry is not None]
        said = [text for entry in living if (text := _other_life(bucket.name, entry, ttls[entry.key], most))]
        for text in said[:NAMED]:
            session.warn(text)
        if len(said) > NAMED:
            session.warn(f"So it is with {len(said) - NAMED} more keys")


def _other_life(bucket: str, entry: "Entry", ttl: timedelta, most: timedelta | None) -> str | None:
    lives = ttl if entry.ttl is None else entry.ttl
    if most is not None and most < lives:
        return f"`{entry.key}` expires after {format_duration(most)}, the ttl of bucket `{bucket}`"
    if lives > ttl:
        return (
            f"`{entry.key}` expires after {format_duration(lives)}, the marker ttl of bucket `{bucket}`, "
            "since the bucket has a history"
        )
    return None


async def warn_of_shorter_life(session: Session, source: "Bucket", key: str, target: "Bucket", new_key: str) -> None:
    """Warn where the ttl of another bucket ends a value earlier than it would end here; silent where none is read."""
    from kvctl.kv.write.expiry import bucket_ttl, time_left

    if source is target:
        return
    with suppress(KvctlError):
        most = await bucket_ttl(target)
        if most is None:
            return
        left = await time_left(source, await source.get(key, leader=True))
        if left is None or left > most:
            session.warn(
                f"`{new_key}` expires after {format_duration(most)}, the ttl of bucket `{target.name}`; "
                f"in bucket `{source.name}` it would {_end(left)}"
            )


def _end(left: timedelta | None) -> str:
    if left is None:
        return "not expire"
    return f"live for {format_duration(timedelta(seconds=round(left.total_seconds())))}"
