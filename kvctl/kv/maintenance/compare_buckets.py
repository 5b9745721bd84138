"""Compare two buckets key by key: keys that are missing, extra, or have another value."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum

from kvctl.kv.bucket import Bucket

_DIGEST = 16


class Differing(StrEnum):
    """Difference of a key in the second bucket."""

    MISSING = "missing"
    EXTRA = "extra"
    DIFFERS = "differs"


@dataclass(frozen=True, slots=True)
class KeyDifference:
    """Difference in one key; its revision in each bucket, None where it does not live."""

    key: str
    difference: Differing
    revision: int | None
    other_revision: int | None


async def compare(first: Bucket, second: Bucket) -> list[KeyDifference]:
    """Return the keys in which the second bucket differs from the first, by name; deleted keys count as absent.

    Uses some 250 bytes of memory for each key of the first. Raises BucketNotFound.
    """
    known: dict[str, tuple[bytes, int]] = {}
    async for batch in first.entry_batches():
        known.update((entry.key, (_digest(entry.value), entry.revision)) for entry in batch)
    found: list[KeyDifference] = []
    async for batch in second.entry_batches():
        for entry in batch:
            digest, revision = known.pop(entry.key, (b"", None))
            if revision is None:
                found.append(KeyDifference(entry.key, Differing.EXTRA, None, entry.revision))
            elif digest != _digest(entry.value):
                found.append(KeyDifference(entry.key, Differing.DIFFERS, revision, entry.revision))
    found += [KeyDifference(key, Differing.MISSING, revision, None) for key, (_, revision) in known.items()]
    return sorted(found, key=lambda item: item.key)


def _digest(value: bytes) -> bytes:
    return hashlib.blake2b(value, digest_size=_DIGEST).digest()
