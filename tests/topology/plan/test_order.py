"""The order of changes: every state in between leads to the same end."""

from typing import Any

from kvctl.kv.stream_kind import Kind
from kvctl.topology.plan.change import Action, ResourceChange
from kvctl.topology.plan.planner import ordered
from tests.topology.plain import info


def change(
    action: Action, name: str, *, origins: str = "", reads: str = "", leaving: str = "", **more: Any
) -> ResourceChange:
    found = ResourceChange(
        kind=Kind.AGGREGATE,
        name=name,
        place="",
        stream=name,
        live=None if action is Action.CREATE else info({"name": name, "sources": [{"name": one} for one in leaving]}),
        after=None if action is Action.DELETE else {"name": name},
        origins=tuple(("", origin) for origin in origins),
        reads=tuple(("", origin) for origin in reads),
        recreated=action is Action.RECREATE,
        **more,
    )
    assert found.action is action
    return found


def order(*changes: ResourceChange) -> str:
    return "".join(item.name for item in ordered(changes))


def test_created_streams_come_before_their_readers():
    assert order(change(Action.CREATE, "R", origins="O"), change(Action.CREATE, "O")) == "OR"
    assert order(change(Action.CHANGE, "R", origins="O"), change(Action.RECREATE, "O")) == "OR"


def test_follower_comes_before_its_changed_or_recreated_origin():
    follower = change(Action.CHANGE, "R", origins="O", reads="O", follows=True)
    for action in (Action.CHANGE, Action.RECREATE):
        assert order(change(action, "O"), follower) == "RO"
    assert order(change(Action.CHANGE, "O"), change(Action.CHANGE, "R", origins="O", reads="O")) == "OR"


def test_follower_of_old_origin_with_new_origin_comes_between_them():
    changes = (
        change(Action.CHANGE, "A"),
        change(Action.CHANGE, "R", origins="AN", reads="A", follows=True),
        change(Action.CREATE, "N"),
    )
    assert order(*changes) == "NRA"


def test_origin_loses_keys_before_it_gets_a_reader():
    changes = change(Action.CHANGE, "R", origins="O", follows=True), change(Action.CHANGE, "O", leaving="X")
    assert order(*changes) == "OR"


def test_deletions_are_last_and_readers_first_unless_they_free_a_name():
    gone = change(Action.DELETE, "G"), change(Action.DELETE, "H", origins="G"), change(Action.DELETE, "N")
    assert order(*gone, change(Action.CREATE, "N")) == "NNHG"


def test_cycle_is_ordered():
    assert order(change(Action.CREATE, "A", origins="B"), change(Action.CREATE, "B", origins="A")) == "BA"
