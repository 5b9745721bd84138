"""What the ttl of a key does in a bucket with a history."""

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from kvctl.cli.session import Session
from kvctl.errors import KvctlError

if TYPE_CHECKING:
    from kvctl.kv.bucket import Bucket

NAMED = 10
"""Keys that a warning names."""


async def warn_of_return(session: Session, bucket: "Bucket", keys: Sequence[str]) -> None:
    """Warn of keys, just written with a ttl, whose earlier values come back after it; silent where none can be read."""
    from kvctl.kv.expiring import returning

    with suppress(KvctlError):
        found = await returning(bucket, keys)
        for entry in found[:NAMED]:
            session.warn(
                f"When `{entry.key}` expires, its value at revision {entry.revision} comes back, since bucket "
                f"`{bucket.name}` has a history"
            )
        if len(found) > NAMED:
            session.warn(f"So it is with {len(found) - NAMED} more keys")
