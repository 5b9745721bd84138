"""The drawing of a history."""

import random
from collections.abc import Sequence

import pytest

from kvctl.cli.repo.commit_graph import Graph

Commits = Sequence[tuple[str, Sequence[str]]]


def drawn(history: Commits) -> str:
    graph = Graph()
    lines = []
    for commit, parents in history:
        found = graph.draw(commit, parents)
        lines += [f"{found.mark} {commit}", *found.slants]
    return "\n".join(lines)


def test_graph_of_a_single_line():
    assert drawn([("b", ["a"]), ("a", [])]) == "* b\n* a"


def test_graph_of_a_merge():
    assert (
        drawn([("m", ["a", "b"]), ("b", ["r"]), ("a", ["r"]), ("r", [])])
        == r"""
* m
|\
| * b
* | a
|/
* r""".lstrip("\n")
    )


def test_graph_of_a_merge_within_a_merge():
    history = [("m", ["a", "b"]), ("a", ["c", "d"]), ("b", ["r"]), ("d", ["r"]), ("c", ["r"]), ("r", [])]
    assert (
        drawn(history)
        == r"""
* m
|\
* | a
|\ \
| | * b
| * | d
| |/
* | c
|/
* r""".lstrip("\n")
    )


def test_graph_joins_distant_lanes():
    history = [
        ("m", ["a", "b"]),
        ("n", ["b", "c"]),
        ("o", ["c", "a"]),
        ("c", ["r"]),
        ("b", ["r"]),
        ("a", ["r"]),
        ("r", []),
    ]
    assert (
        drawn(history)
        == r"""
* m
|\
| | * n
| | |\
| |/ /
| | | * o
| | | |\
| | |/ /
| |_|/
|/| |
| | * c
| * | b
| |/
* | a
|/
* r""".lstrip("\n")
    )


def test_graph_of_unrelated_histories():
    assert (
        drawn([("a", ["x"]), ("b", ["y"]), ("x", []), ("y", [])])
        == r"""
* a
| * b
* | x
 /
* y""".lstrip("\n")
    )


@pytest.mark.parametrize("seed", range(10))
def test_graph_of_any_history_has_a_lane_for_each_open_line(seed):
    chance = random.Random(seed)
    names = [f"c{number}" for number in range(40)]
    graph, waiting = Graph(), set[str]()
    for number, name in enumerate(names):
        below = names[number + 1 : number + 6]
        parents = chance.sample(below, min(len(below), chance.choice((1, 1, 1, 2))))
        found = graph.draw(name, parents)
        assert found.mark.count("*") == 1
        assert len(found.mark.split()) == len(waiting | {name})
        waiting = (waiting | {*parents}) - {name}
        assert all({*line} <= {*"|/\\_ "} and line == line.rstrip() for line in found.slants)
    assert not waiting
