"""Warnings about interactions between the ttl of a key, the ttl of its bucket and history."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta

import kvctl
from kvctl.cli.app.session import Session
from kvctl.errors import KvctlError
from kvctl.kv import copied_entry
from kvctl.phrases import counted
from kvctl.units import format_duration

NAMED = 10
"""Maximum number of keys to name in warnings."""


async def warn_of_return(session: Session, bucket: "kvctl.Bucket", keys: Sequence[str]) -> None:
    """Warn about keys just written with a ttl whose previous values will reappear; silent if they are unreadable."""
    with suppress(KvctlError):
        found = await copied_entry.returning(bucket, keys)
        _warn_of_each(
            session,
            [
                f"When `{entry.key}` expires, its value at revision {entry.revision} reappears, because bucket "
                f"`{bucket.name}` keeps history"
                for entry in found
            ],
        )


async def warn_of_other_life(session: Session, bucket: "kvctl.Bucket", ttls: Mapping[str, timedelta]) -> None:
    """Warn about keys just written with a ttl that expire earlier or later; silent if that cannot be read."""
    with suppress(KvctlError):
        most = await copied_entry.bucket_ttl(bucket)
        entries = await bucket.get_many(list(ttls), leader=True)
        living = [entry for entry in entries if entry is not None]
        texts = [text for entry in living if (text := _other_life(bucket.name, entry, ttls[entry.key], most))]
        _warn_of_each(session, texts)


def _warn_of_each(session: Session, texts: Sequence[str]) -> None:
    """Warn of the first keys, and of the number of the others."""
    for text in texts[:NAMED]:
        session.warn(text)
    if (more := len(texts) - NAMED) > 0:
        session.warn(f"{counted(more, 'more key')} {'is' if more == 1 else 'are'} affected")


def _other_life(bucket: str, entry: "kvctl.Entry", ttl: timedelta, most: timedelta | None) -> str | None:
    lives = ttl if entry.ttl is None else entry.ttl
    if most is not None and most < lives:
        return f"`{entry.key}` expires after {format_duration(most)}, the ttl of bucket `{bucket}`"
    if lives > ttl:
        return (
            f"`{entry.key}` expires after {format_duration(lives)}, the marker ttl of bucket `{bucket}`, "
            "because the bucket keeps history"
        )
    return None


async def warn_of_shorter_life(
    session: Session, source: "kvctl.Bucket", key: str, target: "kvctl.Bucket", new_key: str
) -> None:
    """Warn if the ttl of the target bucket ends a value earlier than in its own; silent if that cannot be read."""
    if source is target:
        return
    with suppress(KvctlError):
        most = await copied_entry.bucket_ttl(target)
        if most is None:
            return
        left = await copied_entry.time_left(source, await source.get(key, leader=True))
        if left is None or left > most:
            session.warn(
                f"`{new_key}` expires after {format_duration(most)}, the ttl of bucket `{target.name}`; "
                f"in bucket `{source.name}` it would {_end(left)}"
            )


def _end(left: timedelta | None) -> str:
    if left is None:
        return "not expire"
    return f"live for {format_duration(timedelta(seconds=round(left.total_seconds())))}"
