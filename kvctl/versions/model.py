"""Commits, branches and staged changes as records. [pure]"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kvctl.errors import UsageError
from kvctl.kv.names import check_key
from kvctl.versions.tree.chunks import object_id, understood

INLINE = 4096
"""Bytes of a value that stands in its leaf; larger ones are objects of their own."""

LONGEST_KEY = 2048
"""Bytes of a key: any branch and any live bucket has room for it on the wire."""

REMEMBERED = 16
"""Epochs that a staging record remembers after it has let go of them."""
DROPPED = ""
"""Where the changes of an epoch are that a reset has dropped."""

_INLINE, _APART = b"\0", b"\1"
_TOMBSTONE, _VALUE = b"\0", b"\1"


def record_key(name: str) -> bytes:
    """Return the key of a branch's or tag's records; of what is not text, one that no record has."""
    return name.encode("utf-8", "surrogatepass")


def check_text(text: str, what: str) -> str:
    """The text itself. Raises UsageError for what came from bytes that are not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"The {what} is not UTF-8") from None
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A state of all keys, and how it came about."""

    root: str
    """Hex id of the tree."""
    parents: tuple[str, ...]
    message: str
    author: str
    created_ns: int
    meta: Mapping[str, str] = field(default_factory=dict)
    generation: int = 0
    """One more than the highest of its parents."""

    @property
    def id(self) -> str:
        """Hex id: the same content, parents and moment are the same commit."""
        return object_id(self.encode()).hex()

    def encode(self) -> bytes:
        """The record's bytes, which the id is of."""
        return _encode({"version": 1, **_fields(self), "meta": dict(self.meta)})

    @classmethod
    def decode(cls, data: bytes) -> Commit:
        """The commit of a record."""
        with understood():
            found = json.loads(data)
            del found["version"]
            return cls(**{**found, "parents": tuple(found["parents"])})


@dataclass(frozen=True, slots=True)
class Head:
    """Where a branch stands."""

    commit: str
    root: str
    generation: int = 0

    def encode(self) -> bytes:
        """The record's bytes."""
        return _encode(_fields(self))

    @classmethod
    def decode(cls, data: bytes) -> Head:
        """The head of a record."""
        with understood():
            return cls(**json.loads(data))


@dataclass(frozen=True, slots=True)
class Staging:
    """The epoch that a branch's writes go to, and those sealed and not yet committed, oldest first."""

    epoch: str
    sealed: tuple[str, ...] = ()
    gone: tuple[tuple[str, str], ...] = ()
    """The last epochs that were let go of, each with the commit or the epoch that has its changes, or DROPPED."""
    since: float = 0
    """When, in seconds of the Unix epoch, the oldest of those sealed was, or was made of others."""
    folds: int = 0
    """How often sealed epochs were made one since a commit took some."""

    @property
    def epochs(self) -> list[str]:
        """All that may hold staged changes, the newest first."""
        return [self.epoch, *reversed(self.sealed)]

    def sealing(self, epoch: str, now: float) -> Staging:
        """After a seal; writes go to this epoch."""
        since = self.since if self.sealed else now
        return replace(self, epoch=epoch, sealed=(*self.sealed, self.epoch), since=since)

    def without(self, epochs: Sequence[str], successor: str, now: float) -> Staging:
        """After these sealed epochs were let go of; the successor has their changes."""
        gone = (*self.gone, *((epoch, successor) for epoch in epochs))[-REMEMBERED:]
        sealed = tuple(one for one in self.sealed if one not in epochs)
        return replace(self, sealed=sealed, gone=gone, since=now, folds=0)

    def folded(self, epochs: Sequence[str], epoch: str, now: float) -> Staging:
        """After the oldest of those sealed were made one."""
        after = self.without(epochs, epoch, now)
        return replace(after, sealed=(epoch, *after.sealed), folds=self.folds + 1)

    def whereabouts(self, epoch: str) -> str | None:
        """The commit or the sealed epoch that has an epoch's changes now, or DROPPED; None when that is forgotten."""
        successors = dict(self.gone)
        while epoch in successors:
            epoch = successors[epoch]
        return epoch if epoch in self.sealed or len(epoch) != len(self.epoch) else None

    def encode(self) -> bytes:
        """The record's bytes."""
        return _encode(_fields(self))

    @classmethod
    def decode(cls, data: bytes) -> Staging:
        """The staging of a record."""
        with understood():
            found = json.loads(data)
            gone = tuple((one, other) for one, other in found["gone"])
            return cls(**{**found, "sealed": tuple(found["sealed"]), "gone": gone})


@dataclass(frozen=True, slots=True)
class VersionedEntry:
    """A key and its value at a ref."""

    key: str
    value: bytes
    staged: bool = False
    apart: str | None = None
    """The identity of a value that was not read."""

    @property
    def identity(self) -> str:
        """Hex hash of the value: what a conditional write compares."""
        return self.apart or object_id(self.value).hex()


def check_versioned_key(key: str) -> str:
    """The key itself. Raises UsageError (ADR-8, and a length)."""
    if len(key) > LONGEST_KEY:
        raise UsageError(f"The key has {len(key):,} characters, {LONGEST_KEY:,} are the most")
    return check_key(key)


def encode_staged(value: bytes | None) -> bytes:
    """A staged change: a value, or None for a deletion."""
    return _TOMBSTONE if value is None else _VALUE + value


def decode_staged(data: bytes) -> bytes | None:
    """The value of a staged change; None for a deletion."""
    return None if data[:1] == _TOMBSTONE else data[1:]


def leaf_value(value: bytes) -> tuple[bytes, dict[bytes, bytes]]:
    """What stands in a leaf for a value, and the objects that it needs."""
    if len(value) <= INLINE:
        return _INLINE + value, {}
    identity = object_id(value)
    return _APART + identity, {identity: value}


def inline_value(stored: bytes) -> bytes | None:
    """The value that stands in a leaf; None for one that is apart."""
    return stored[1:] if stored[:1] == _INLINE else None


def apart_id(stored: bytes) -> bytes:
    """The id of the object that holds a value kept apart."""
    return stored[1:]


def _fields(record: Commit | Head | Staging) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__slots__}


def _encode(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
