"""Writes of many tasks carried out together: one batch in flight, which takes what came up meanwhile.

A batch costs the same however little it holds: on one replica its syncs, on several a round among them, in which the
leader refuses any other write that is checked against the same keys.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

from kvctl.errors import KvctlError
from kvctl.versions.store.protocol import Change, Predicate, PredicateFailed

MOST_MESSAGES = 1000
MOST_BYTES = 8 << 20
"""Bytes that writes of several tasks come to in one batch; what one task writes at once is not cut."""


Revisions = Mapping[str, int]
"""Of the keys that were changed."""


@dataclass(slots=True)
class Wish:
    """One task's write: all of it or nothing. Keys are partition and key as tokens."""

    conditions: Sequence[tuple[str, Predicate]]
    changes: Mapping[str, bytes | None]
    """A value, or None to delete the key."""
    traceless: Set[str] = frozenset()
    """Keys whose deletion may be undone after a while."""
    done: asyncio.Future[Revisions] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def messages(self) -> int:
        """How many messages it takes at the most."""
        return len(self.changes) + len(self.conditions)

    @property
    def size(self) -> int:
        """Bytes of its values."""
        return sum(len(value) for value in self.changes.values() if value)


class Failing(KvctlError):
    """Conditions of a batch do not hold; nothing was written."""

    def __init__(self, keys: Set[str]) -> None:
        super().__init__("A condition does not hold")
        self.keys = keys
        """Whose; empty where that is not known."""


class Grouping:
    """Carries wishes out by `store`, which takes several as one batch and raises Failing or what failed."""

    def __init__(self, store: Callable[[Sequence[Wish]], Awaitable[Revisions]]) -> None:
        self._store = store
        self._waiting: deque[Wish] = deque()
        self._worker: asyncio.Task[None] | None = None

    async def write(self, wish: Wish) -> Revisions:
        """Carry it out. Raises PredicateFailed, and what `store` raises."""
        self._waiting.append(wish)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return await wish.done

    async def _work(self) -> None:
        while self._waiting:
            group = self._together()
            try:
                revisions = await self._store(group)
            except Failing as error:
                self._sort_out(group, error.keys)
            except BaseException as error:
                _end(group, error)
                if not isinstance(error, Exception):
                    _end(self._waiting, error)
                    raise
            else:
                _fulfil(group, revisions)

    def _together(self) -> list[Wish]:
        """The wishes that have waited longest, as far as they fit into one batch and do not touch each other."""
        group: list[Wish] = []
        held: dict[str, Predicate] = {}
        changed: dict[str, bytes | None] = {}
        messages = size = 0
        while self._waiting:
            wish = self._waiting[0]
            if wish.done.done():  # whoever wanted it was cancelled
                self._waiting.popleft()
                continue
            messages, size = messages + wish.messages, size + wish.size
            if group and (messages > MOST_MESSAGES or size > MOST_BYTES or _touches(wish, held, changed)):
                break
            group.append(self._waiting.popleft())
            held.update(wish.conditions)
            changed.update(wish.changes)
        return group

    def _sort_out(self, group: Sequence[Wish], failing: Set[str]) -> None:
        """End those that can never be carried out, and let the others try again."""
        lost = [wish for wish in group if not failing or any(key in failing for key, _ in wish.conditions)] or group
        _end(lost, PredicateFailed("A condition does not hold"))
        self._waiting.extendleft(wish for wish in reversed(group) if not wish.done.done())


def in_batches(changes: Sequence[Change], most: int = MOST_MESSAGES) -> Iterator[Sequence[Change]]:
    """One task's changes in parts that a batch takes, `most` in each."""
    start = size = 0
    for at, change in enumerate(changes):
        size += len(change.value or b"")
        if at > start and (at - start == most or size > MOST_BYTES):
            yield changes[start:at]
            start, size = at, len(change.value or b"")
    if start < len(changes):
        yield changes[start:]


def _touches(wish: Wish, held: Mapping[str, Predicate], changed: Mapping[str, bytes | None]) -> bool:
    """Whether it changes or asks about what the others change, or asks otherwise about what they ask about.

    The same change of a key that nobody asks about is made once for all of them.
    """
    if any(key in held or changed.get(key, value) != value for key, value in wish.changes.items()):
        return True
    return any(key in changed or held.get(key, predicate) != predicate for key, predicate in wish.conditions)


def _fulfil(wishes: Sequence[Wish], revisions: Revisions) -> None:
    for wish in wishes:
        if not wish.done.done():
            wish.done.set_result(revisions)


def _end(wishes: Sequence[Wish] | deque[Wish], error: BaseException) -> None:
    for wish in wishes:
        if not wish.done.done():
            wish.done.set_exception(error)
