"""Commits, branches and staged changes as records. [pure]"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kvctl.errors import UsageError
from kvctl.kv.names import check_key
from kvctl.versions.tree.chunks import object_id, understood

INLINE = 4096
"""Maximum bytes of a value stored in its leaf; larger ones are separate objects."""

LONGEST_KEY = 2048
"""Maximum bytes of a key, such that every branch and every live bucket has room for it on the wire."""

REMEMBERED = 16
"""Number of removed epochs that a branch remembers."""
DROPPED = ""
"""Successor of an epoch whose changes a reset dropped."""

_INLINE, _APART = b"\0", b"\1"
_TOMBSTONE, _VALUE = b"\0", b"\1"


def record_key(name: str) -> bytes:
    """Return the key of a branch's or tag's record; for text that is not UTF-8, a key that no record has."""
    return name.encode("utf-8", "surrogatepass")


def check_text(text: str, what: str) -> str:
    """Return the text. Raises UsageError if it was decoded from bytes that are not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"The {what} is not UTF-8") from None
    return text


class Commit(NamedTuple):
    """State of all keys, with its parents, message and author."""

    root: str
    """Hex id of the tree."""
    parents: tuple[str, ...]
    message: str
    author: str
    created_ns: int
    meta: Mapping[str, str] = {}
    generation: int = 0
    """One more than the highest generation of its parents."""

    @property
    def id(self) -> str:
        """Hex id: the hash of the record, equal for equal content, parents and time."""
        return object_id(self.encode()).hex()

    def encode(self) -> bytes:
        """Return the record's bytes, from which the id is computed."""
        return _encode({"version": 1, **self._asdict(), "meta": dict(self.meta)})

    @classmethod
    def decode(cls, data: bytes) -> Commit:
        """Read the commit of a record."""
        with understood():
            found = json.loads(data)
            del found["version"]
            return cls(**{**found, "parents": tuple(found["parents"])})


class Branch(NamedTuple):
    """Commit that a branch points to, the epoch that its writes go to, and sealed ones not yet committed."""

    commit: str
    root: str
    """Hex id of the commit's tree."""
    generation: int
    epoch: str
    sealed: tuple[str, ...] = ()
    """Oldest first."""
    gone: tuple[tuple[str, str], ...] = ()
    """Last epochs that were removed, each with the commit or epoch that has its changes now, or DROPPED."""

    @property
    def epochs(self) -> list[str]:
        """Return all epochs that may hold staged changes, newest first."""
        return [self.epoch, *reversed(self.sealed)]

    def at(self, identity: str, commit: Commit) -> Branch:
        """Return the branch with another commit."""
        return self._replace(commit=identity, root=commit.root, generation=commit.generation)

    def sealing(self, epoch: str) -> Branch:
        """Return the branch after a seal; writes go to this epoch."""
        return self._replace(epoch=epoch, sealed=(*self.sealed, self.epoch))

    def on_top(self, private: str, epoch: str) -> Branch:
        """Return the branch with a private epoch as the newest sealed one; writes go to `epoch`, which may be new."""
        own = () if epoch == self.epoch else (self.epoch,)
        return self._replace(epoch=epoch, sealed=(*self.sealed, *own, private))

    def without(self, epochs: Sequence[str], successor: str) -> Branch:
        """Return the branch after these sealed epochs are removed; the successor has their changes."""
        gone = (*self.gone, *((epoch, successor) for epoch in epochs))[-REMEMBERED:]
        return self._replace(sealed=tuple(one for one in self.sealed if one not in epochs), gone=gone)

    def folded(self, epoch: str) -> Branch:
        """Return the branch after all sealed epochs are folded into one."""
        return self.without(self.sealed, epoch)._replace(sealed=(epoch,))

    def whereabouts(self, epoch: str) -> str | None:
        """Return the commit or sealed epoch that has an epoch's changes now, or DROPPED; None if no longer known."""
        successors = dict(self.gone)
        while epoch in successors:
            epoch = successors[epoch]
        return epoch if epoch in self.sealed or len(epoch) != len(self.epoch) else None

    def encode(self) -> bytes:
        """Return the record's bytes."""
        return _encode(self._asdict())

    @classmethod
    def decode(cls, data: bytes) -> Branch:
        """Read the branch of a record."""
        with understood():
            found = json.loads(data)
            gone = tuple((one, other) for one, other in found["gone"])
            return cls(**{**found, "sealed": tuple(found["sealed"]), "gone": gone})


class StagedChange(NamedTuple):
    """Staged value, None for a deletion, and its revision."""

    value: bytes | None
    revision: int


class VersionedEntry(NamedTuple):
    """Key and its value at a ref."""

    key: str
    value: bytes
    revision: int | None = None
    """Revision of a staged value; None if it is committed."""
    apart: str | None = None
    """Identity of a large value that was not read."""

    @property
    def identity(self) -> str:
        """Hex hash of the value, compared by conditional writes."""
        return self.apart or object_id(self.value).hex()


def check_versioned_key(key: str) -> str:
    """Return the key. Raises UsageError for an illegal (ADR-8) or too long one."""
    if len(key) > LONGEST_KEY:
        raise UsageError(f"The key has {len(key):,} characters; the maximum is {LONGEST_KEY:,}")
    return check_key(key)


def encode_staged(value: bytes | None) -> bytes:
    """Encode a staged change: a value, or None for a deletion."""
    return _TOMBSTONE if value is None else _VALUE + value


def decode_staged(data: bytes) -> bytes | None:
    """Decode the value of a staged change; None for a deletion."""
    return None if data[:1] == _TOMBSTONE else data[1:]


def staged_leaf_value(data: bytes) -> bytes | None:
    """Decode a staged change as a leaf stores its value: a large one by its id."""
    value = decode_staged(data)
    return None if value is None else leaf_value(value)[0]


def leaf_value(value: bytes) -> tuple[bytes, dict[bytes, bytes]]:
    """Return the bytes that a leaf stores for a value, and the objects that it needs."""
    if len(value) <= INLINE:
        return _INLINE + value, {}
    identity = object_id(value)
    return _APART + identity, {identity: value}


def inline_value(stored: bytes) -> bytes | None:
    """Return the value stored inline in a leaf; None for one stored separately."""
    return stored[1:] if stored[:1] == _INLINE else None


def apart_id(stored: bytes) -> bytes:
    """Return the id of the object that holds a value stored separately."""
    return stored[1:]


def _encode(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
