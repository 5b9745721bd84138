"""The order of planned changes. [pure]"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from kvctl.topology.plan.origin_place import Where
from kvctl.topology.plan.plan import Action, Change


def ordered(changes: Iterable[Change]) -> list[Change]:
    """In an order in which each state in between is one from which planning again leads to the same end.

    What is made comes before what reads from it; what changes because its origin does comes before that, as nothing
    would tell of the change afterwards. Deletions are last, readers first, but for those that make way for a name.
    """
    changes = list(changes)
    deleted = [change for change in changes if change.action is Action.DELETE]
    others = [change for change in changes if change.action is not Action.DELETE]
    names = {(change.place, change.name) for change in others}
    freeing = [change for change in deleted if (change.place, change.name) in names]
    rest = [change for change in readers_first(deleted) if change not in freeing]
    return [*freeing, *_origins_first(others), *rest]


def readers_first(changes: Sequence[Change]) -> list[Change]:
    """In an order in which whatever reads from another comes before it."""
    readers = _readers(changes)
    return _sorted(changes, lambda change: readers.get(change.where, []))


def _origins_first(changes: Sequence[Change]) -> list[Change]:
    made = {change.where: change for change in changes if change.action is not Action.CHANGE or change.leaving}
    following: dict[Where, list[Change]] = {}
    for change in changes:
        for where in change.reads if change.follows else ():
            following.setdefault(where, []).append(change)

    def before(change: Change) -> list[Change]:
        known = change.reads if change.action is Action.CHANGE else ()
        origins = [made[where] for where in change.origins if where in made and where not in known]
        return origins + (following.get(change.where, []) if change.action is not Action.CREATE else [])

    return _sorted(changes, before)


def _readers(changes: Iterable[Change]) -> dict[Where, list[Change]]:
    """By stream, the changes of what reads from it."""
    found: dict[Where, list[Change]] = {}
    for change in changes:
        for where in change.origins:
            found.setdefault(where, []).append(change)
    return found


def _sorted(changes: Sequence[Change], before: Callable[[Change], list[Change]]) -> list[Change]:
    """Each after what has to be before it, else as they were."""
    found: list[Change] = []
    begun: set[Where] = set()

    def add(change: Change) -> None:
        if change.where not in begun:
            begun.add(change.where)
            for other in before(change):
                add(other)
            found.append(change)

    for change in changes:
        add(change)
    return found
