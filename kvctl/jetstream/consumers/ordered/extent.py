"""Extent of a stream on some subjects: last sequence and number of subjects, to verify a finite reading."""

from __future__ import annotations

from collections.abc import Sequence

from kvctl.jetstream import streams
from kvctl.jetstream.api import Api
from kvctl.jetstream.direct import direct_get
from kvctl.jetstream.stream_info import StreamState

_CHANGES = ("messages", "bytes", "first_seq", "last_seq", "num_deleted")


async def last_matching(api: Api, stream: str, subjects: Sequence[str]) -> int:
    """Return the last sequence on any of the subjects, 0 for none. Raises StreamNotFound, PermissionDenied."""
    last = 0
    for subject in subjects:
        found = await direct_get.from_leader(api, stream, last_by_subj=subject)
        last = max(last, found.sequence if found else 0)
    return last


async def subjects(api: Api, stream: str, filters: Sequence[str]) -> int:
    """Return the number of subjects that match a filter and have messages in the stream."""
    found: set[str] = set()
    for subject in filters:
        found.update(await streams.subjects(api, stream, subject))
    return len(found)


def unchanged(before: StreamState, after: StreamState) -> bool:
    """Return True if, by a stream's states, nothing was written or removed in between."""
    return all(before.get(name) == after.get(name) for name in _CHANGES)
