"""Leaves cut in parts produce the same tree as a single pass."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvctl.versions.tree import tree
from kvctl.versions.tree.chunks import chunks_of
from kvctl.versions.tree.tree import NewChunks, Reading, T, build, joined

KEYS = st.sets(st.binary(min_size=1, max_size=12), max_size=400)


def carried(reading: "Reading[T]", objects: dict[bytes, bytes]) -> "T":
    try:
        wanted = next(reading)
        while True:
            wanted = reading.send({identity: objects[identity] for identity in wanted})
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def root_by_parts(pairs: list[tuple[bytes, bytes]], borders: list[int]) -> tuple[bytes, dict[bytes, bytes]]:
    """Return the root when each part is cut separately, and all objects."""
    made = NewChunks()
    ends = [0, *sorted(borders), len(pairs)]
    parts = [pairs[start:end] for start, end in pairwise(ends)]
    found = carried(joined([[made.add(chunk) for chunk in chunks_of(0, part)] for part in parts if part]), made.objects)
    return found.root, {**made.objects, **found.objects}


@given(KEYS, st.lists(st.integers(0, 400), max_size=5))
def test_joined_leaves_equal_a_single_pass_wherever_parts_meet(keys, borders):
    pairs = [(key, b"v" * (len(key) * 7)) for key in sorted(keys)]
    found, _ = root_by_parts(pairs, [min(border, len(pairs)) for border in borders])
    assert found == build(pairs).root


@pytest.mark.parametrize("size", [10, 900])
def test_join_of_many_keys_and_large_values_at_the_size_cap(size):
    chosen = random.Random(size)
    pairs = sorted((b"k.%d" % number, chosen.randbytes(chosen.randrange(size))) for number in range(8000))
    found, objects = root_by_parts(pairs, [chosen.randrange(8000) for _ in range(7)])
    assert found == build(pairs).root
    leaves = carried(tree.leaves(found), objects)
    assert carried(tree.get(found, [key for key, _ in pairs]), objects) == dict(pairs)
    assert len(leaves) > 50


def test_the_empty_tree_has_no_leaves():
    assert root_by_parts([], [])[0] == tree.EMPTY_ROOT
    assert carried(tree.leaves(tree.EMPTY_ROOT), build([]).objects) == []


def test_parts_that_end_with_a_leaf_need_only_their_last_leaf():
    made = NewChunks()
    row = [made.add(chunk) for chunk in chunks_of(0, [(b"k.%06d" % number, b"v") for number in range(4000)])]
    parts = [row[:9], row[9:20], row[20:21], row[21:]]
    read: list[bytes] = []

    class Counting(dict[bytes, bytes]):
        def __getitem__(self, key: bytes) -> bytes:
            read.append(key)
            return made.objects[key]

    assert carried(joined(parts), Counting()).root == made.tree(row).root
    assert read == [part[-1][1] for part in parts]
