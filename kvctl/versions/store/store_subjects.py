"""Where a store on JetStream keeps a key, and what its predicates stand for. [pure]"""

from __future__ import annotations

from functools import lru_cache

from kvctl.kv.ordered_token import token, untoken
from kvctl.versions.store.protocol import (
    ABSENT,
    EXISTS,
    Predicate,
    PredicateFailed,
)


@lru_cache(maxsize=1024)
def head(partition: bytes) -> str:
    """What the places of a partition's keys begin with."""
    return f"p{token(partition).decode()}."


def partition_of_head(text: str) -> bytes:
    """The partition whose places begin with this token."""
    return untoken(text[1:].encode())


def place_of(partition: bytes, key: bytes) -> str:
    """Partition and key as tokens: the end of a subject."""
    return head(bytes(partition)) + token(key).decode()


def predicate_of(stream: str, place: str, revision: int) -> Predicate:
    """That the last revision of a place is this one."""
    return Predicate((stream, place, revision))


def was_read(predicate: Predicate) -> bool:
    """Whether it is neither ABSENT nor EXISTS."""
    return predicate is not ABSENT and predicate is not EXISTS and predicate not in (ABSENT, EXISTS)


def insisted(stream: str, place: str, predicate: Predicate) -> int:
    """The revision that a predicate insists on. Raises PredicateFailed for one of another key or store."""
    held = getattr(predicate, "token", None)
    if isinstance(held, tuple) and held[:2] == (stream, place):
        return int(held[2])
    raise PredicateFailed("The condition is of another key or store")


def revision_of(predicate: Predicate) -> int | None:
    """The revision that a predicate stands for which a store on JetStream gave out; None for any other."""
    held = predicate.token
    return int(held[2]) if isinstance(held, tuple) else None
