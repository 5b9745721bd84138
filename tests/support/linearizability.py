"""A linearizability checker for recorded histories of keys with revisions (Wing and Gong's search, with memory).

An operation takes effect at one moment between its call and its end, one of unknown outcome at any moment after its
call, or never. The history is linearizable if there is an order of such moments in which every operation does to a
plain model what it reported. Operations may concern several keys, so a transaction is one operation.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

UNKNOWN_END = math.inf
MOST_NODES = 400_000

State = tuple[tuple[int, str | None], ...]
"""Revision and value of each key; no value where it does not live.

A negative revision -N-1 stands for an unknown one above N.
"""


class Condition(NamedTuple):
    """What an operation asks of a key: that it lives or not, or its revision, or both revision and value."""

    key: int
    live: bool | None = None
    revision: int | None = None
    value: str | None = None


class Change(NamedTuple):
    """What an operation does to a key; the revision where it was reported."""

    key: int
    value: str | None
    revision: int | None = None


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation as its caller saw it.

    The outcome is `ok` (its conditions held and its changes were made), `conflict` (a condition did not hold and
    nothing was changed) or `unknown` (as `ok` at any time after the call, or never).
    """

    process: str
    kind: str
    call: float
    end: float
    outcome: str
    conditions: tuple[Condition, ...] = ()
    changes: tuple[Change, ...] = ()

    def __str__(self) -> str:
        end = "      ..." if self.end == UNKNOWN_END else f"{self.end:9.4f}"
        what = [*map(_shown, self.conditions), *(f"{c.key} := {c.value}@{c.revision}" for c in self.changes)]
        return f"{self.call:9.4f} {end} {self.process:>6} {self.kind:<8} {self.outcome:<8} {', '.join(what)}"


class NotLinearizable(AssertionError):
    """No order of the operations explains what they reported."""


class Undecided(AssertionError):
    """The search was given up."""


def check(operations: Iterable[Operation], keys: int) -> int:
    """Search an order that explains everything; return the number of states looked at.

    Raises NotLinearizable with the history and what could be explained, Undecided.
    """
    history = sorted((op for op in operations), key=lambda op: op.call)
    definite = sum(1 << place for place, op in enumerate(history) if op.outcome != "unknown")
    stack: list[tuple[int, State]] = [(0, ((0, None),) * keys)]
    seen = set(stack)
    best = 0
    while stack:
        done, state = stack.pop()
        if done & definite == definite:
            return len(seen)
        if (done & definite).bit_count() > (best & definite).bit_count():
            best = done
        for following in _steps(history, done, state):
            if following not in seen:
                seen.add(following)
                stack.append(following)
        if len(seen) > MOST_NODES:
            raise Undecided(f"{len(seen)} states of {len(history)} operations")
    lines = [("+ " if best >> place & 1 else "- ") + str(op) for place, op in enumerate(history)]
    raise NotLinearizable("No order explains the operations marked -:\n" + "\n".join(lines))


def _steps(history: Sequence[Operation], done: int, state: State) -> list[tuple[int, State]]:
    """What may take effect next; one step alone where that costs no possibility."""
    first_end = min((op.end for place, op in enumerate(history) if not done >> place & 1), default=UNKNOWN_END)
    found = []
    for place, op in enumerate(history):
        if op.call > first_end:
            break
        if done >> place & 1:
            continue
        for after in _effects(op, state):
            if after == state and op.outcome != "unknown":
                return [(done | 1 << place, after)]  # it changes nothing, so the sooner the better
            found.append((done | 1 << place, after))
    found.sort(key=lambda step: -max(revision for revision, _ in step[1]))
    return found


def _effects(op: Operation, state: State) -> Iterator[State]:
    """The states after the operation took effect in this one."""
    held: State | None = state
    for condition in op.conditions:
        if held is not None:
            held = _held(condition, held)
    if op.outcome == "conflict":
        if held != state:  # a condition fails, or may
            yield state
        return
    if held is None:
        return
    after = list(held)
    for change in op.changes:
        before = after[change.key][0]
        least = before if before >= 0 else -before - 1
        if change.revision is not None and change.revision <= least:
            return
        after[change.key] = (-least - 1 if change.revision is None else change.revision, change.value)
    yield tuple(after)


def _held(condition: Condition, state: State) -> State | None:
    """The state if the condition holds, with what it tells about an unknown revision; None if it does not hold."""
    revision, value = state[condition.key]
    if condition.live is not None and condition.live != (value is not None):
        return None
    if condition.revision is None:
        return state
    if condition.live is not None and value != condition.value:
        return None
    if revision >= 0:
        return state if revision == condition.revision else None
    if condition.revision <= -revision - 1:
        return None
    known = list(state)
    known[condition.key] = condition.revision, value
    return tuple(known)


def _shown(condition: Condition) -> str:
    parts = [f"{condition.key}"]
    if condition.live is not None:
        parts.append("lives" if condition.live else "is gone")
    if condition.revision is not None:
        parts.append(f"at {condition.revision}")
    if condition.value is not None:
        parts.append(f"is {condition.value}")
    return " ".join(parts)
