"""The linearizability checker accepts what can be explained and nothing else."""

import pytest

from tests.support.linearizability import UNKNOWN_END, Change, Condition, NotLinearizable, Operation, check


def operation(call: float, end: float, outcome: str = "ok", *parts: Condition | Change) -> Operation:
    conditions = tuple(part for part in parts if isinstance(part, Condition))
    changes = tuple(part for part in parts if isinstance(part, Change))
    return Operation("p", "op", call, end if outcome != "unknown" else UNKNOWN_END, outcome, conditions, changes)


def read(call: float, end: float, revision: int, value: str | None) -> Operation:
    return operation(call, end, "ok", Condition(0, value is not None, revision, value))


CREATE = Condition(0, live=False)
ACCEPTED = {
    "one after the other": [
        operation(0, 1, "ok", CREATE, Change(0, "a", 1)),
        operation(2, 3, "ok", Condition(0, revision=1), Change(0, "b", 2)),
        read(4, 5, 2, "b"),
    ],
    "a read beside a write sees either": [
        operation(0, 9, "ok", Change(0, "a", 1)),
        read(1, 2, 0, None),
        read(3, 4, 1, "a"),
    ],
    "an unknown write that was seen": [operation(0, 0, "unknown", CREATE, Change(0, "a")), read(5, 6, 7, "a")],
    "an unknown write that never came": [operation(0, 0, "unknown", CREATE, Change(0, "a")), read(5, 6, 0, None)],
    "a conflict with an unknown write": [
        operation(0, 0, "unknown", CREATE, Change(0, "a")),
        operation(1, 2, "conflict", CREATE),
    ],
    "a transaction and a read beside it": [
        operation(0, 5, "ok", Change(0, "a", 1), Change(1, "a", 2)),
        read(1, 2, 1, "a"),
        operation(3, 4, "ok", Condition(1, live=True, revision=2, value="a")),
    ],
}
REFUSED = {
    "two creations": [
        operation(0, 2, "ok", CREATE, Change(0, "a", 1)),
        operation(1, 3, "ok", CREATE, Change(0, "a", 1)),
    ],
    "two updates of one revision": [
        operation(0, 1, "ok", CREATE, Change(0, "a", 1)),
        operation(2, 5, "ok", Condition(0, revision=1), Change(0, "b", 2)),
        operation(2, 5, "ok", Condition(0, revision=1), Change(0, "b", 3)),
    ],
    "a stale read": [
        operation(0, 1, "ok", Change(0, "a", 1)),
        operation(2, 3, "ok", Change(0, "b", 2)),
        read(4, 5, 1, "a"),
    ],
    "a conflict that was stored": [
        operation(0, 1, "ok", CREATE, Change(0, "a", 1)),
        operation(2, 3, "conflict", Condition(0, revision=1), Change(0, "b")),
    ],
    "an unknown write that comes back": [
        operation(0, 0, "unknown", CREATE, Change(0, "a")),
        operation(1, 2, "ok", CREATE, Change(0, "b", 3)),
        read(3, 4, 1, "a"),
    ],
    "half a transaction": [
        operation(0, 1, "ok", Change(0, "a", 1), Change(1, "a", 2)),
        operation(2, 3, "ok", Condition(1, live=False)),
    ],
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_history_that_can_be_explained_is_accepted(name):
    check(ACCEPTED[name], 2)


@pytest.mark.parametrize("name", REFUSED)
def test_history_that_cannot_be_explained_is_refused(name):
    with pytest.raises(NotLinearizable):
        check(REFUSED[name], 2)
