"""Trees of chunks against a plain dictionary: the same entries have the same root, changes touch little."""

import contextlib
import random
import zlib
from collections.abc import Mapping
from itertools import accumulate, pairwise
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvctl.versions.tree import chunks, tree, tree_update
from kvctl.versions.tree.chunks import Chunker, TreeChunk, chunks_of, object_id
from kvctl.versions.tree.tree import (
    EMPTY_ROOT,
    Conflict,
    NewChunks,
    NewTree,
    Reading,
    Strategy,
    TreeDifference,
    build,
    diff,
    differences,
    entries,
    get,
    joined,
    merge,
    run,
)
from kvctl.versions.tree.tree_update import CHANGES_PER_ROUND, Ahead, Edit, update

T = TypeVar("T")
MANY = 3000


@pytest.fixture(params=["as shipped", "tiny"])
def shape(request, monkeypatch):
    """Chunks as they are, and so small that a few entries make a tree of many levels."""
    if request.param == "tiny":
        tiny(monkeypatch)
    return str(request.param)


def tiny(monkeypatch: pytest.MonkeyPatch, cap: int = 120) -> None:
    for name, value in (("LEAF_MINIMUM", 2), ("LEAF_MEAN", 2), ("INDEX_MEAN", 2), ("CAP", cap)):
        monkeypatch.setattr(chunks, name, value)


def made(content: Mapping[bytes, bytes]) -> NewTree:
    return build(sorted(content.items()))


def counted(reading: Reading[T], objects: Mapping[bytes, bytes]) -> tuple[T, int]:
    """Return the result, and the number of chunks read."""
    count = 0

    class Counting(dict[bytes, bytes]):
        def __getitem__(self, key: bytes) -> bytes:
            nonlocal count
            count += 1
            return objects[key]

    return run(reading, Counting()), count


def some(count: int, seed: int = 0) -> dict[bytes, bytes]:
    dice = random.Random(seed)
    return {b"key.%06d" % number: dice.randbytes(dice.randint(0, 40)) for number in range(count)}


def changed(content: Mapping[bytes, bytes], edits: list[Edit]) -> dict[bytes, bytes]:
    result = {**content, **{key: value for key, value in edits if value is not None}}
    for key, value in edits:
        if value is None:
            result.pop(key, None)
    return result


def edits_of(dice: random.Random, content: Mapping[bytes, bytes], count: int) -> list[Edit]:
    found: dict[bytes, bytes | None] = {}
    keys = sorted(content)
    for _ in range(count):
        key = dice.choice(keys) if keys and dice.random() < 0.7 else b"key.%06d" % dice.randrange(10_000)
        found[key] = None if dice.random() < 0.4 else dice.randbytes(dice.randint(0, 30))
    return sorted(found.items())


class TestChunks:
    @given(st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=100)), max_size=20), st.integers(0, 9))
    def test_chunk_round_trips_through_its_bytes(self, pairs, level):
        chunk = TreeChunk.of(level, pairs)
        assert TreeChunk.decode(chunk.encode()) == chunk

    def test_damaged_bytes_are_refused(self):
        data = TreeChunk(0, [b"a", b"b"], [b"1", b"2"]).encode()
        for bad in (b"", data[:-1], data + b"x", b"xx" + data[2:], data[:2] + b"\2" + data[3:], data[:9]):
            with pytest.raises(ValueError, match="chunk"):
                TreeChunk.decode(bad)

    def test_chunks_of_numbered_keys_have_the_intended_size(self):
        sizes = [len(chunk.pairs) for chunk in chunks_of(0, some(60_000).items())]
        mean = sum(sizes) / len(sizes)
        assert min(sizes[:-1]) >= chunks.LEAF_MINIMUM
        assert 0.9 < mean / (chunks.LEAF_MINIMUM + chunks.LEAF_MEAN) < 1.1

    def test_large_values_end_a_chunk(self):
        pairs = [(b"%04d" % number, b"v" * 30_000) for number in range(12)]
        assert {len(chunk.pairs) for chunk in chunks_of(0, pairs)} == {3}
        assert [len(chunk.pairs) for chunk in chunks_of(0, [(b"k", b"v" * 10**6)])] == [1]
        assert Chunker(0).end() is None


class TestBuild:
    @pytest.mark.guarantee("versions-11")
    def test_the_same_entries_have_the_same_root_in_whatever_order_they_came(self, shape):
        content = some(MANY)
        items = list(content.items())
        roots = set()
        for seed in range(3):
            random.Random(seed).shuffle(items)
            now: dict[bytes, bytes] = {}
            root, objects = EMPTY_ROOT, dict(build([]).objects)
            for at in range(0, len(items), 400):
                step = run(update(root, sorted(items[at : at + 400])), objects)
                now.update(items[at : at + 400])
                root = step.root
                objects.update(step.objects)
            roots.add(root)
            assert run(entries(root), objects) == sorted(now.items())
        assert roots == {made(content).root}

    def test_no_root_has_a_single_child(self, shape):
        for count in (0, 1, 2, 5, 50, MANY):
            made_tree = made(some(count))
            root = TreeChunk.decode(made_tree.objects[made_tree.root])
            assert root.level == 0 or len(root.pairs) > 1
            assert all(object_id(data) == identity for identity, data in made_tree.objects.items())

    def test_empty_tree_is_an_empty_leaf(self):
        assert build([]).root == EMPTY_ROOT
        assert run(entries(EMPTY_ROOT), build([]).objects) == []


class TestReading:
    def test_get_returns_existing_keys(self, shape):
        content = some(MANY)
        held = made(content)
        wanted = [b"", b"key.000000", b"key.001500", b"key.0015001", b"key.002999", b"z"]
        assert run(get(held.root, wanted), held.objects) == {key: content[key] for key in wanted if key in content}
        assert run(get(held.root, []), held.objects) == {}

    def test_entries_from_a_key_on(self, shape):
        content = some(MANY)
        held = made(content)
        for start in (b"", b"key.0010", b"key.002999", b"z"):
            expected = [(key, value) for key, value in content.items() if key >= start]
            assert run(entries(held.root, start), held.objects) == expected

    def test_reading_one_key_takes_one_chunk_per_level(self):
        held = made(some(20_000))
        height = TreeChunk.decode(held.objects[held.root]).level
        _, read = counted(get(held.root, [b"key.012345"]), held.objects)
        assert read == height + 1


class TestUpdate:
    @pytest.mark.parametrize("seed", range(60))
    def test_update_equals_a_rebuild(self, seed, monkeypatch):
        dice = random.Random(seed)
        tiny(monkeypatch, cap=dice.choice([80, 120, 400, 10**6]))
        content = some(dice.choice([0, 1, 3, 20, 300]), seed)
        held = made(content)
        root, objects = held.root, dict(held.objects)
        for _ in range(6):
            edits = edits_of(dice, content, dice.choice([1, 2, 10, 100]))
            content = changed(content, edits)
            step = run(update(root, edits), objects)
            assert not step.objects.keys() & held.objects.keys()
            objects.update(step.objects)
            root = step.root
            whole = made(content)
            assert root == whole.root
            assert step.objects.keys() <= whole.objects.keys()
            assert whole.objects.keys() <= objects.keys()
            assert run(entries(root), objects) == sorted(content.items())
            held = whole

    def test_all_entries_can_be_removed(self, shape):
        content = some(500)
        held = made(content)
        step = run(update(held.root, [(key, None) for key in sorted(content)]), held.objects)
        assert step.root == EMPTY_ROOT

    def test_updates_without_effect_create_nothing(self, shape):
        content = some(500)
        held = made(content)
        same: list[Edit] = [(key, content[key]) for key in sorted(content)[:50]]
        for edits in ([], same, [(b"no such key", None)]):
            assert run(update(held.root, edits), held.objects) == NewTree(held.root, {})

    @pytest.mark.parametrize("key", [b"", b"key.010000", b"zzz"])
    def test_one_change_reads_and_writes_a_few_chunks(self, key):
        content = some(20_000)
        held = made(content)
        height = TreeChunk.decode(held.objects[held.root]).level
        step, read = counted(update(held.root, [(key, b"new")]), held.objects)
        assert len(step.objects) <= height + 3
        assert read <= 2 * (height + 1)
        assert step.root == made({**content, key: b"new"}).root

    @pytest.mark.guarantee("versions-20")
    def test_overwriting_a_value_reads_and_writes_one_chunk_per_level(self):
        content = some(20_000)
        held = made(content)
        height = TreeChunk.decode(held.objects[held.root]).level
        counts = []
        for key in list(content)[5_000:5_100]:
            step, read = counted(update(held.root, [(key, b"new")]), held.objects)
            counts.append((read, len(step.objects)))
        assert sorted(counts)[len(counts) // 2] == (height + 1, height + 1)

    def test_new_chunks_can_be_taken_during_an_update(self, monkeypatch):
        monkeypatch.setattr(tree_update, "HAND_OVER", 5_000)
        content = some(MANY)
        held = made(content)
        edits = edits_of(random.Random(1), content, 2000)
        in_hand = NewChunks()
        stored, most = dict(held.objects), 0

        def taking() -> Reading[NewTree]:
            nonlocal most
            reading = update(held.root, edits, in_hand)
            wanted = next(reading)
            while True:
                most = max(most, in_hand.size)
                if in_hand.size >= tree_update.HAND_OVER:
                    stored.update(in_hand.take())
                try:
                    wanted = reading.send((yield wanted))
                except StopIteration as end:
                    result: NewTree = end.value
                    return result

        result = run(taking(), stored)
        assert 5_000 <= most < 10_000
        expected = made(changed(content, edits))
        assert result.root == expected.root
        assert expected.objects.keys() <= (stored | result.objects).keys()

    def test_any_number_of_changes_may_fall_into_one_chunk(self, monkeypatch):
        monkeypatch.setattr(tree_update, "CHANGES_PER_ROUND", 50)
        content = some(MANY)
        few = {key: content[key] for key in list(content)[1000:1040:3]}
        step = run(update(made(few).root, [*content.items()]), made(few).objects)
        assert step.root == made(content).root

    @pytest.mark.parametrize("at_once", [1, 3, 9, 10, 30])
    def test_changes_of_one_chunk_in_parts_replace_its_entries(self, at_once, monkeypatch):
        monkeypatch.setattr(tree_update, "CHANGES_PER_ROUND", at_once)
        content = some(30)
        held = made(content)
        for edits in (
            [(key, b"new") for key in content],
            [(key, None) for key in list(content)[:-1]],
            [(key, b"new" if number % 2 else None) for number, key in enumerate(content)],
        ):
            assert run(update(held.root, edits), held.objects).root == made(changed(content, edits)).root

    def test_scattered_changes_read_each_level_together(self):
        content = some(20_000)
        held = made(content)
        edits: list[Edit] = [(key, b"new") for key in list(content)[::40]]
        height = TreeChunk.decode(held.objects[held.root]).level
        reading = update(held.root, edits)
        sizes, wanted = list[int](), next(reading)
        with contextlib.suppress(StopIteration):
            while True:
                sizes.append(0 if isinstance(wanted, Ahead) else len(wanted))
                wanted = reading.send({identity: held.objects[identity] for identity in wanted})
        rounds = [size for size in sizes if size]
        assert max(rounds) > CHANGES_PER_ROUND // 2
        assert len(rounds) <= 2 * (height + 1) + len(edits) // CHANGES_PER_ROUND


class TestDiff:
    @pytest.mark.parametrize("seed", range(40))
    def test_diff_equals_that_of_dictionaries(self, seed, monkeypatch):
        dice = random.Random(seed)
        tiny(monkeypatch)
        monkeypatch.setattr(tree, "LEAVES", dice.choice([1, 2, 5, 100]))
        before = some(dice.choice([0, 1, 30, 300]), seed)
        after = changed(before, edits_of(dice, before, dice.choice([0, 1, 20, 200])))
        left, right = made(before), made(after)
        expected = [
            TreeDifference(key, before.get(key), after.get(key))
            for key in sorted(before.keys() | after.keys())
            if before.get(key) != after.get(key)
        ]
        assert run(diff(left.root, right.root), {**left.objects, **right.objects}) == expected

    def test_diff_holds_only_part_of_the_leaves(self, monkeypatch):
        monkeypatch.setattr(tree, "LEAVES", 10)
        left, right = made(some(20_000)), made({key: value + b"+" for key, value in some(20_000).items()})
        objects = {**left.objects, **right.objects}
        step = differences(left.root, right.root)
        found, sizes, sent = 0, [], dict[bytes, bytes]()
        with contextlib.suppress(StopIteration):
            wanted = next(step)
            while True:
                if isinstance(wanted, set):
                    sent = {identity: objects[identity] for identity in wanted}
                    sizes.append(len(wanted))
                else:
                    found += len(wanted)
                wanted = step.send(sent)
        assert found == 20_000
        assert max(sizes) < 30

    @pytest.mark.guarantee("versions-11")
    def test_diff_reads_in_proportion_to_the_changes(self):
        content = some(20_000)
        held = made(content)
        other = run(update(held.root, [(b"key.010000", b"new")]), held.objects)
        found, read = counted(diff(held.root, other.root), {**held.objects, **other.objects})
        assert [difference.key for difference in found] == [b"key.010000"]
        assert read <= 2 * 4
        assert counted(diff(held.root, held.root), {}) == ([], 0)


class TestMerge:
    @settings(max_examples=300)
    @given(
        *(
            st.dictionaries(st.sampled_from([b"a", b"b", b"c", b"d"]), st.sampled_from([b"1", b"2", b"3"]))
            for _ in "123"
        )
    )
    def test_merge_equals_that_of_dictionaries(self, base, source, dest):
        trees = [made(content) for content in (base, source, dest)]
        objects = {key: data for held in trees for key, data in held.objects.items()}
        ours = run(diff(trees[0].root, trees[1].root), objects)
        theirs = run(diff(trees[0].root, trees[2].root), objects)
        conflicting = [
            key
            for key in sorted(base.keys() | source.keys() | dest.keys())
            if source.get(key) != base.get(key) != dest.get(key) and source.get(key) != dest.get(key)
        ]
        plain = merge(ours, theirs)
        assert plain.conflicts == [Conflict(k, base.get(k), source.get(k), dest.get(k)) for k in conflicting]
        for strategy in Strategy:
            expected = dict(dest)
            for key in base.keys() | source.keys() | dest.keys():
                takes = source.get(key) != base.get(key) and (
                    dest.get(key) == base.get(key) or (strategy is Strategy.SOURCE_WINS and key in conflicting)
                )
                if takes:
                    expected.pop(key, None)
                    expected.update({key: source[key]} if key in source else {})
            found = merge(ours, theirs, strategy)
            assert found.conflicts == []
            step = run(update(trees[2].root, found.edits), objects)
            assert step.root == made(expected).root


class TestLeaves:
    @pytest.mark.parametrize("count", [0, 1, 3, 60, MANY])
    def test_leaves_come_in_order_without_being_read(self, shape, count):
        content = some(count)
        held = made(content)
        expected = [object_id(chunk.encode()) for chunk in chunks_of(0, content.items())]
        indexes = sum(TreeChunk.decode(data).level > 0 for data in held.objects.values())
        assert counted(tree.leaves(held.root), held.objects) == (expected, indexes or min(count, 1))

    def test_diff_of_few_and_many_entries_holds_only_part_of_the_leaves(self, monkeypatch):
        monkeypatch.setattr(tree, "LEAVES", 10)
        content = some(20_000)
        few, many = made(dict(list(content.items())[::20])), made(dict.fromkeys(content, b"+"))
        objects = {**few.objects, **many.objects}
        for sides in ((few.root, many.root), (many.root, few.root)):
            step = differences(*sides)
            sizes, sent = list[int](), dict[bytes, bytes]()
            with contextlib.suppress(StopIteration):
                wanted = next(step)
                while True:
                    if isinstance(wanted, set):
                        sent = {identity: objects[identity] for identity in wanted}
                        sizes.append(len(wanted))
                    wanted = step.send(sent)
            assert max(sizes) <= 20


class TestMade:
    def test_size_is_the_bytes_of_the_chunks_that_are_held(self):
        held = NewChunks()
        assert held.size == 0
        pairs = [held.add(TreeChunk(0, [b"%d" % number], [b"v" * number])) for number in (1, 2, 2, 3)]
        assert pairs[1] == pairs[2]
        assert len(held.objects) == 3
        held.remove(pairs[0][1])
        held.remove(pairs[0][1])
        assert held.objects.keys() == {identity for _, identity in pairs[1:]}
        assert held.size == sum(map(len, held.objects.values())) > 0
        assert {object_id(data) for data in held.take().values()} == {identity for _, identity in pairs[1:]}
        assert (held.objects, held.size) == ({}, 0)

    def test_pair_of_an_empty_chunk_has_no_key(self):
        assert NewChunks().add(chunks.EMPTY) == (b"", EMPTY_ROOT)
        assert NewChunks().add(TreeChunk(1, [b"a", b"b"], [b"1", b"2"]))[0] == b"b"


def test_the_format_never_changes():
    assert build([(b"k", b"v")]).root.hex() == "6be591f02f1802ae8bd7eba9f81fac1e951a711b"
    assert tree.EMPTY_ROOT.hex() == "84d2a55e397bb042269ee2293d8026e2bf789d10"
    assert made(some(5000, 1)).root.hex() == "09d59ccd341c7a3e7a879f7db24bbc5bed479c61"


def test_numbers_of_the_format_never_change():
    assert (chunks.ID_SIZE, chunks.LEAF_MINIMUM, chunks.LEAF_MEAN) == (20, 32, 32)
    assert (chunks.INDEX_MINIMUM, chunks.INDEX_MEAN, chunks.CAP) == (2, 128, 65_536)
    assert chunks._FACTORS == (11400714819323198485, 14029467366897019727, 1609587929392839161, 15485907386658061715)


@pytest.mark.parametrize("level", [0, 1, 2, 3, 4, 9])
def test_chunk_ends_according_to_the_format(level):
    factors = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93)
    minimum, mean = (32, 32) if level == 0 else (2, 128)
    dice = random.Random(level)
    pairs = [(b"key.%06d" % number, bytes(20 if dice.random() < 0.99 else 40_000)) for number in range(4000)]
    ends, start, size = list[int](), 0, 0
    for at, (key, value) in enumerate(pairs, 1):
        size += len(key) + len(value) + 6
        hashed = (zlib.crc32(key) + 1) * factors[level % 4] % 2**64
        if (at - start >= minimum and hashed < 2**64 // mean) or (size >= 65_536 and at - start >= 2):
            ends.append(at)
            start, size = at, 0
    found = list(chunks_of(level, pairs))
    assert list(accumulate(len(chunk.keys) for chunk in found)) == [
        *ends,
        *([len(pairs)] if start < len(pairs) else []),
    ]
    assert [pair for chunk in found for pair in chunk.pairs] == pairs
    assert {chunk.level for chunk in found} == {level}


@pytest.mark.parametrize(("size", "counts"), [(32_758, [2, 2, 1]), (32_757, [3, 2]), (65_526, [2, 2, 1])])
def test_chunk_ends_with_the_entry_that_reaches_64_kb(size, counts):
    """An entry takes a key of 4 bytes, a value and 6 more; a chunk has at least two."""
    pairs = [(b"%04d" % number, bytes(size)) for number in range(5)]
    assert [len(chunk.keys) for chunk in chunks_of(0, pairs)] == counts


def test_damaged_chunk_of_any_kind_is_a_bad_record():
    with pytest.raises(chunks.BadRecord, match="not a chunk of this version"):
        TreeChunk.decode(b"kc\x02\0\0\0\0\0")
    for error in (KeyError("a"), TypeError("b"), ValueError("c"), ZeroDivisionError("d")):
        with pytest.raises(chunks.BadRecord, match=type(error).__name__), chunks.understood():
            raise error


def test_chunker_is_open_while_entries_have_not_ended_a_chunk():
    chunker = Chunker(0)
    assert not chunker.open
    assert chunker.add([b"a"], [b"1"]) == []
    assert chunker.open
    assert chunker.end() == TreeChunk(0, [b"a"], [b"1"])
    assert not chunker.open
    assert chunker.end() is None


def test_chunk_that_is_full_before_its_last_entry_ends_before_it():
    """Each entry counts 6 bytes beyond its key and value."""
    keys = [b"%04d" % number for number in range(400)]
    first, *_ = chunks_of(0, [(key, b"") for key in keys])
    full = len(first.keys) - 1
    sizes = [(65_536 - 10 * full) // full] * (full - 1)
    sizes += [65_536 - 10 * full - sum(sizes), 0]
    found = next(chunks_of(0, [(key, bytes(size)) for key, size in zip(keys, sizes, strict=False)]))
    assert len(found.keys) == full


JOINED_KEYS = st.sets(st.binary(min_size=1, max_size=12), max_size=400)


def root_by_parts(pairs: list[tuple[bytes, bytes]], borders: list[int]) -> tuple[bytes, dict[bytes, bytes]]:
    """Return the root when each part is cut separately, and all objects."""
    made = NewChunks()
    ends = [0, *sorted(borders), len(pairs)]
    parts = [pairs[start:end] for start, end in pairwise(ends)]
    found = run(joined([[made.add(chunk) for chunk in chunks_of(0, part)] for part in parts if part]), made.objects)
    return found.root, {**made.objects, **found.objects}


@given(JOINED_KEYS, st.lists(st.integers(0, 400), max_size=5))
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
    leaves = run(tree.leaves(found), objects)
    assert run(tree.get(found, [key for key, _ in pairs]), objects) == dict(pairs)
    assert len(leaves) > 50


def test_the_empty_tree_has_no_leaves():
    assert root_by_parts([], [])[0] == tree.EMPTY_ROOT
    assert run(tree.leaves(tree.EMPTY_ROOT), build([]).objects) == []


def test_parts_that_end_with_a_leaf_need_only_their_last_leaf():
    made = NewChunks()
    row = [made.add(chunk) for chunk in chunks_of(0, [(b"k.%06d" % number, b"v") for number in range(4000)])]
    parts = [row[:9], row[9:20], row[20:21], row[21:]]
    read: list[bytes] = []

    class Counting(dict[bytes, bytes]):
        def __getitem__(self, key: bytes) -> bytes:
            read.append(key)
            return made.objects[key]

    assert run(joined(parts), Counting()).root == made.tree(row).root
    assert read == [part[-1][1] for part in parts]
