"""Subjects of keys in a store on JetStream, and the meaning of their predicates. [pure]"""

from __future__ import annotations

from functools import lru_cache

from kvctl.kv.ordered_token import token, untoken
from kvctl.versions.store.protocol import ABSENT, EXISTS, Predicate, PredicateFailed


@lru_cache(maxsize=1024)
def partition_prefix(partition: bytes) -> str:
    """Return the common prefix of the places of a partition's keys."""
    return f"p{token(partition).decode()}."


def partition_of_head(text: str) -> bytes:
    """Return the partition whose places begin with this token."""
    return untoken(text[1:].encode())


def subject_token(partition: bytes, key: bytes) -> str:
    """Return partition and key as tokens: the end of a subject."""
    return partition_prefix(bytes(partition)) + token(key).decode()


def predicate_of(stream: str, place: str, revision: int) -> Predicate:
    """Return the predicate that this is the last revision of a place."""
    return Predicate((stream, place, revision))


def is_read_token(predicate: Predicate) -> bool:
    """Return whether a predicate was returned by a read: neither ABSENT nor EXISTS."""
    return predicate is not ABSENT and predicate is not EXISTS and predicate not in (ABSENT, EXISTS)


def expected_revision(stream: str, place: str, predicate: Predicate) -> int:
    """Return the revision that a predicate requires. Raises PredicateFailed for one of another key or store."""
    held = getattr(predicate, "token", None)
    if isinstance(held, tuple) and held[:2] == (stream, place):
        return int(held[2])
    raise PredicateFailed("The condition belongs to another key or store")


def revision_of(predicate: Predicate) -> int | None:
    """Return the revision in a predicate of a store on JetStream; None for any other."""
    held = predicate.token
    return int(held[2]) if isinstance(held, tuple) else None
