"""Keys of a table as subjects, and their partitions. [pure]

An entry's subject is the table's prefix, then partition, family and key, one token each, so that no two collide.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from contextlib import suppress
from functools import lru_cache
from hashlib import blake2b

from kvctl.deferred import pattern
from kvctl.errors import UsageError
from kvctl.tokens import token, untoken

MAX_KEY = 2560
"""Maximum bytes of family and key together.

Encoded as four characters for three bytes, they have to fit into the protocol's line of 4,096. Pravega's limit is
8,190.
"""
MAX_TABLE = 128
"""Maximum characters of a table's name, which appears twice in that line."""
MAX_PARTITIONS = 4096
CACHED_FAMILIES = 1024
"""Families whose token and partition are cached: entries arrive by family."""

_NO_FAMILY, _FAMILY = "0", "1"
_SEED = b"kvctl.tables"
_HEX = pattern(r"(?:[0-9a-fA-F]{2})*\Z")


def check_key(family: str | None, key: bytes) -> None:
    """Raise UsageError for an empty key, an invalid family, and too many bytes."""
    if not key:
        raise UsageError("The key is empty", hint="A key has at least one byte; only family and value may be empty")
    try:
        size = len(key) + len((family or "").encode())
    except UnicodeEncodeError:
        raise UsageError("The key family is not valid UTF-8") from None
    if size > MAX_KEY:
        what = "Family and key are" if family else "The key is"
        raise UsageError(f"{what} {size:,} bytes, the maximum is {MAX_KEY:,}")


def tail(partition: int, family: str | None, key: bytes) -> str:
    """Return the last three tokens of an entry's subject."""
    return f"{partition:04x}.{within_family(family)}.{token(key).decode()}"


@lru_cache(CACHED_FAMILIES)
def within_family(family: str | None) -> str:
    """Return the token of a family; None: no family."""
    return _NO_FAMILY if family is None else _FAMILY + token(family.encode()).decode()


def read_tail(text: str) -> tuple[int, str | None, bytes]:
    """Return partition, family and key of a subject's last three tokens. Raises ValueError for any other text."""
    with suppress(ValueError):
        first, second, third = text.encode().split(b".")
        return *read_group(first, second), read_key(third)
    raise ValueError(f"`{text}` is not a key of a table")


@lru_cache(CACHED_FAMILIES)
def read_group(partition: bytes, family: bytes) -> tuple[int, str | None]:
    """Return partition and family of their tokens. Raises ValueError."""
    number, text = int(partition, 16), family.decode()
    name = None if text == _NO_FAMILY else untoken(text.removeprefix(_FAMILY).encode()).decode()
    if b"%04x" % number != partition or within_family(name) != text:
        raise ValueError(f"`{text}` is not a family of a table")
    return number, name


def read_key(text: bytes) -> bytes:
    """Return the key of its token. Raises ValueError."""
    key = untoken(text)
    if not key or token(key) != text:
        raise ValueError("The token is not a key of a table")
    return key


def partition_of(family: str | None, key: bytes, count: int) -> int:
    """Return the partition of a key among `count`: that of its family, or its own without one.

    A uniform hash (BLAKE2b of 64 bits, with a constant seed) over contiguous ranges of equal size.
    """
    return _hash(b"\0" + key) * count >> 64 if family is None else _hash_of_family(family) * count >> 64


def _hash(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8, person=_SEED).digest())


@lru_cache(CACHED_FAMILIES)
def _hash_of_family(family: str) -> int:
    return _hash(b"\1" + family.encode())


def hash_range(partition: int, count: int) -> tuple[int, int]:
    """Return the first and the last hash of a partition, 64 bits each."""
    return -(-(partition << 64) // count), -(-(partition + 1 << 64) // count) - 1


def parse_key(text: str) -> bytes:
    """Return a key as people write it: text, `hex:...` or `base64:...`. Raises UsageError."""
    kind, colon, rest = text.partition(":")
    if colon and kind == "hex":
        if not _HEX.match(rest):
            raise UsageError(
                f"`{text}` is not a hexadecimal key", hint="Use two digits per byte, for example `hex:00ff`"
            )
        return bytes.fromhex(rest)
    if colon and kind == "base64":
        try:
            return b64decode(rest, validate=True)
        except (binascii.Error, ValueError):
            raise UsageError(f"`{text}` is not a base64 key", hint="For example `base64:AP8=`") from None
    return text.encode("utf-8", "surrogateescape")
