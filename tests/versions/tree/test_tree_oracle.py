"""Trees against a dictionary: an updated tree equals the one built from its content.

The model is a dictionary. Keys are added in order, in front, at and around the borders of chunks of every level, and
removed down to nothing: where a change falls decides which part of the tree stays, and a defect there loses keys.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import pairwise

import hypothesis
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from kvctl.versions.tree import chunks
from kvctl.versions.tree.chunks import Pair, TreeChunk, chunks_of
from kvctl.versions.tree.tree import (
    EMPTY_ROOT,
    NewChunks,
    Strategy,
    TreeDifference,
    build,
    diff,
    entries,
    get,
    joined,
    leaves,
    merge,
    run,
)
from kvctl.versions.tree.tree_update import Edit, update

Content = dict[bytes, bytes]
SHAPES = {
    "as shipped": {},
    "small": {"LEAF_MINIMUM": 2, "LEAF_MEAN": 4, "INDEX_MEAN": 3, "CAP": 400},
    "tiny": {"LEAF_MINIMUM": 2, "LEAF_MEAN": 2, "INDEX_MEAN": 2, "CAP": 120},
}
PHASES = (Phase.generate, Phase.shrink)
values = st.one_of(st.binary(max_size=12), st.just(b"v" * 90))


@pytest.fixture(params=SHAPES)
def shape(request, monkeypatch):
    """Chunks as shipped, and so small that a few entries make a tree of several levels."""
    for name, value in SHAPES[request.param].items():
        monkeypatch.setattr(chunks, name, value)
    return str(request.param)


def changed(content: Mapping[bytes, bytes], edits: Sequence[Edit]) -> Content:
    """The content after the changes."""
    held: dict[bytes, bytes | None] = {**content, **dict(edits)}
    return {key: value for key, value in sorted(held.items()) if value is not None}


def compared(before: Mapping[bytes, bytes], after: Mapping[bytes, bytes]) -> list[TreeDifference]:
    """The keys that differ."""
    keys = sorted(before.keys() | after.keys())
    return [TreeDifference(k, before.get(k), after.get(k)) for k in keys if before.get(k) != after.get(k)]


def borders(root: bytes, objects: Mapping[bytes, bytes]) -> list[bytes]:
    """The last keys of all chunks, of every level."""
    found, waiting = set[bytes](), [root]
    while waiting:
        chunk = TreeChunk.decode(objects[waiting.pop()])
        found.update(chunk.keys[-1:])
        waiting += chunk.values if chunk.level else []
    return sorted(found)


class TreeMachine(RuleBasedStateMachine):
    """One tree and the dictionary of its content."""

    def __init__(self) -> None:
        super().__init__()
        self.content: Content = {}
        self.root, self.objects = EMPTY_ROOT, dict(build([]).objects)
        self.past = [(self.root, self.content)]

    @initialize(count=st.sampled_from([0, 1, 31, 62, 130, 700]), gap=st.sampled_from([1, 7]))
    def filled(self, count: int, gap: int) -> None:
        self.apply([(b"k%06d" % (5000 + number * gap), b"%d" % number) for number in range(count)])

    def apply(self, edits: Sequence[Edit]) -> None:
        """Change both, and compare everything."""
        edits = sorted(dict(edits).items())
        step = run(update(self.root, edits), self.objects)
        assert not step.objects.keys() & build(self.content.items()).objects.keys(), "objects that the old tree has"
        self.content = changed(self.content, edits)
        self.objects.update(step.objects)
        built = build(self.content.items())
        assert run(entries(step.root), self.objects) == list(self.content.items())
        assert step.root == built.root
        assert {key: self.objects.get(key) for key in built.objects} == built.objects
        self.root = step.root
        self.past.append((self.root, self.content))

    @rule(count=st.sampled_from([1, 1, 1, 2, 40, 100]), value=values)
    def append(self, count: int, value: bytes) -> None:
        last = max(self.content, default=b"k004999")
        number = int(last[1:7]) if last[1:7].isdigit() else 999_000
        self.apply([(b"k%06d" % (number + 1 + at), value) for at in range(count)])

    @rule(count=st.integers(2, 40))
    def append_one_by_one(self, count: int) -> None:
        for _ in range(count):
            self.append(1, b"")

    @rule(count=st.sampled_from([1, 1, 2, 40, 100]), value=values)
    def prepend(self, count: int, value: bytes) -> None:
        first = min(self.content, default=b"k004999")
        number = int(first[1:7]) if first[1:7].isdigit() else 1000
        self.apply([(b"k%06d" % max(0, number - 1 - at), value) for at in range(count)])

    @rule(data=st.data(), value=values)
    def around_borders(self, data: st.DataObject, value: bytes) -> None:
        ends = borders(self.root, self.objects)
        if not ends:
            return
        edits: dict[bytes, bytes | None] = {}
        for end in data.draw(st.lists(st.sampled_from(ends), min_size=1, max_size=3)):
            at = bisect_left(keys := list(self.content), end)
            near = [end, end + b"!", end[:-1], *keys[at - 1 : at], *keys[at + 1 : at + 2]]
            for key in data.draw(st.lists(st.sampled_from(near), min_size=1, max_size=4)):
                edits[key] = data.draw(st.sampled_from([None, value]))
        self.apply(list(edits.items()))

    @rule(part=st.tuples(st.floats(0, 1), st.floats(0, 1)), other=st.booleans())
    @precondition(lambda self: self.content)
    def remove_a_range(self, part: tuple[float, float], other: bool) -> None:
        keys, (low, high) = list(self.content), sorted(part)
        gone: list[Edit] = [(key, None) for key in keys[int(low * len(keys)) : int(high * len(keys)) + 1]]
        self.apply([*gone, (b"k%06d" % 999_999, b"")] if other else gone)

    @rule(keep=st.sampled_from([0, 0, 1, 2]))
    @precondition(lambda self: self.content)
    def remove_nearly_all(self, keep: int) -> None:
        self.apply([(key, None) for key in list(self.content)[keep:]])

    @rule(chosen=st.randoms(use_true_random=False), count=st.sampled_from([1, 2, 9, 60]), value=values)
    def anywhere(self, chosen: random.Random, count: int, value: bytes) -> None:
        keys = list(self.content)
        found: list[Edit] = []
        for _ in range(count):
            new = not keys or chosen.random() < 0.3
            key = b"k%06d" % chosen.randrange(12_000) if new else chosen.choice(keys)
            found.append((key, None if chosen.random() < 0.4 else value + b"%d" % chosen.randrange(3)))
        self.apply(found)

    @rule(back=st.integers(1, 6))
    def differ(self, back: int) -> None:
        root, content = self.past[-min(back, len(self.past))]
        assert run(diff(root, self.root), self.objects) == compared(content, self.content)
        assert run(diff(self.root, root), self.objects) == compared(self.content, content)

    @rule(back=st.integers(1, 6), strategy=st.sampled_from([None, *Strategy]))
    def merge_past(self, back: int, strategy: Strategy | None) -> None:
        """Merge this state onto an older one; the state in between is the base."""
        base_root, base = self.past[-min(back, len(self.past))]
        root, dest = self.past[-min(2 * back, len(self.past))]
        ours = run(diff(base_root, self.root), self.objects)
        theirs = run(diff(base_root, root), self.objects)
        found = merge(ours, theirs, strategy)
        keys = base.keys() | dest.keys() | self.content.keys()
        mine = {key for key in keys if self.content.get(key) != base.get(key)}
        both = {key for key in mine if dest.get(key) not in (base.get(key), self.content.get(key))}
        assert {one.key for one in found.conflicts} == (both if strategy is None else set())
        taken = mine if strategy is Strategy.SOURCE_WINS else mine - both
        expected = changed(dest, [(key, self.content.get(key)) for key in taken])
        step = run(update(root, found.edits), self.objects)
        assert step.root == build(expected.items()).root
        self.objects.update(step.objects)

    @rule(start=st.binary(max_size=2))
    def read(self, start: bytes) -> None:
        start = b"k" + start
        assert run(entries(self.root, start), self.objects) == [p for p in self.content.items() if p[0] >= start]
        wanted = [start, *list(self.content)[::9], *(key + b"!" for key in list(self.content)[::13])]
        there = {key: self.content[key] for key in wanted if key in self.content}
        assert run(get(self.root, wanted), self.objects) == there

    @rule(cuts=st.lists(st.floats(0, 1), max_size=4))
    def build_in_parts(self, cuts: list[float]) -> None:
        pairs = list(self.content.items())
        places = sorted({0, len(pairs), *(int(cut * len(pairs)) for cut in cuts)})
        made = NewChunks()
        parts = [part(made, pairs[low:high]) for low, high in pairwise(places)]
        whole = run(joined(parts), made.objects)
        assert whole.root == self.root
        assert run(leaves(self.root), self.objects) == [made.add(chunk)[1] for chunk in chunks_of(0, pairs)]


def part(made: NewChunks, pairs: Sequence[Pair]) -> list[Pair]:
    """Return the leaves that one task builds from its entries."""
    return [made.add(chunk) for chunk in chunks_of(0, pairs)]


@pytest.mark.oracle
def test_updated_tree_equals_the_tree_of_its_content(shape, seed, steps):
    machine = hypothesis.seed(seed)(type(f"TreeMachine{seed}", (TreeMachine,), {}))
    examples = max(1, steps(300) // 20)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples, stateful_step_count=20, derandomize=False, database=None, phases=PHASES
        ),
    )


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["k%06d", "host-%04d", "2026-11-22T%06d", "order.%08d", "a.b.%03d"])
def test_a_tree_that_grows_in_key_order_loses_nothing(name, steps):
    root, objects, content = EMPTY_ROOT, dict(build([]).objects), Content()
    for number in range(steps(300)):
        key = (name % number).encode()
        step = run(update(root, [(key, b"v")]), objects)
        content[key] = b"v"
        root = step.root
        objects.update(step.objects)
        assert root == build(sorted(content.items())).root


@pytest.mark.oracle
@pytest.mark.parametrize("level", [0, 1])
def test_changes_at_both_ends_of_a_full_root_lose_nothing(level, seed, steps):
    """Trees whose root is a full chunk, so that it may stay while siblings are added."""
    for number in range(max(1, steps(12) // 4)):
        dice = random.Random(seed + number)
        content = {b"k%06d" % (number * 3): dice.randbytes(3) for number in range(40_000)}
        full = full_root(level, content)
        held = {key: value for key, value in content.items() if key <= full.keys[-1]}
        old = build(held.items())
        assert TreeChunk.decode(old.objects[old.root]) == full
        front: list[Edit] = [(b"a%04d" % at, b"new") for at in range(dice.choice([1, 40, 200]))]
        behind: list[Edit] = [(b"x%04d" % at, b"new") for at in range(dice.choice([1, 40, 200]))]
        low: list[Edit] = [(key, None) for key in held if key <= full.keys[0]]
        high: list[Edit] = [(key, None) for key in held if key > full.keys[-2]]
        for edits in (
            front,
            behind,
            front + behind,
            low,
            high,
            low + behind,
            front + high,
            front + low + high + behind,
        ):
            step = run(update(old.root, edits), old.objects)
            assert step.root == build(changed(held, edits).items()).root


def full_root(level: int, content: Mapping[bytes, bytes]) -> TreeChunk:
    """Return the first chunk of a level, if it is not the last."""
    row = [*content.items()]
    for below in range(level):
        row = [NewChunks().add(chunk) for chunk in chunks_of(below, row)]
    first, _, *_ = chunks_of(level, row)
    return first
