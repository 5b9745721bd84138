"""Order of planned changes. [pure]"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from kvctl.topology.plan.plan import Action, Change
from kvctl.topology.survey.graph import Where


def ordered(changes: Iterable[Change]) -> list[Change]:
    """Return the changes ordered such that planning again after any of them leads to the same end.

    Creations come before their readers; a change that follows its origin's comes before that one, as nothing would show
    the need for it afterwards. Deletions are last, readers first, except those that free a name.
    """
    changes = list(changes)
    deleted = [change for change in changes if change.action is Action.DELETE]
    others = [change for change in changes if change.action is not Action.DELETE]
    names = {(change.place, change.name) for change in others}
    freeing = [change for change in deleted if (change.place, change.name) in names]
    rest = [change for change in readers_first(deleted) if change not in freeing]
    return [*freeing, *_origins_first(others), *rest]


def readers_first(changes: Sequence[Change]) -> list[Change]:
    """Return the changes with readers before their origins."""
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
    """Return the changes of readers, by the stream that they read."""
    found: dict[Where, list[Change]] = {}
    for change in changes:
        for where in change.origins:
            found.setdefault(where, []).append(change)
    return found


def _sorted(changes: Sequence[Change], before: Callable[[Change], list[Change]]) -> list[Change]:
    """Return the changes with each after those that have to be before it, otherwise in the same order."""
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
