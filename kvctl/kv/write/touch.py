"""Write the value of a key again, so that it expires later."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from kvctl.errors import WrongRevision
from kvctl.kv.write import conditional_write
from kvctl.kv.write.copied_headers import own_headers
from kvctl.wire import encode_headers

if TYPE_CHECKING:
    from kvctl.kv.bucket import Bucket

ATTEMPTS = 8
"""Maximum number of attempts for a key that others write concurrently."""


async def touch(bucket: Bucket, key: str, ttl: timedelta) -> int:
    """Write the key's current value with its headers and a new ttl; return the revision. Raises as `Bucket.touch`."""
    conditional_write.write_fields(ttl=ttl)  # raises for a ttl that is too short before anything is sent
    bucket.check_writable(key)
    for _ in range(ATTEMPTS):
        entry = await bucket.get(key, leader=True)
        fields = conditional_write.write_fields(expected=entry.revision, ttl=ttl)
        header = encode_headers({**own_headers(entry), **fields})
        try:
            return await bucket.write_message(key, entry.value, header, entry.revision)
        except WrongRevision:
            continue
    raise WrongRevision(f"`{key}` is being written concurrently and could not be touched", hint="Try again")
