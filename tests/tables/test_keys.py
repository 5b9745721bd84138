"""Keys as subjects: injective, in the order of their bytes, and evenly over the partitions."""

import random
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvctl.errors import UsageError
from kvctl.tables import keys
from kvctl.tables.config import TableConfig

KEYS = st.binary(min_size=1, max_size=40)
FAMILIES = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
PARTITIONS = st.integers(0, keys.MAX_PARTITIONS - 1)


@given(PARTITIONS, FAMILIES, KEYS)
def test_subject_contains_partition_family_and_key(partition, family, key):
    assert keys.read_tail(keys.tail(partition, family, key)) == (partition, family, key)


@pytest.mark.guarantee("tables-1")
@given(FAMILIES, KEYS, FAMILIES, KEYS)
def test_families_and_keys_never_collide(family, key, other_family, other_key):
    same = (family, key) == (other_family, other_key)
    assert (keys.tail(0, family, key) == keys.tail(0, other_family, other_key)) == same


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((None, b"ab"), ("", b"ab")),
        (("a", b"bc"), ("ab", b"c")),
        ((None, b"a"), ("a", b"\0")),
        (("", b"a"), ("a", b"a")),
    ],
)
def test_concatenations_of_family_and_key_differ(one, other):
    assert keys.tail(0, *one) != keys.tail(0, *other)


@given(st.lists(KEYS, min_size=2))
def test_subjects_sort_as_the_bytes_do(found):
    assert sorted(found, key=lambda key: keys.tail(0, None, key)) == sorted(found)


@given(st.lists(st.tuples(FAMILIES, KEYS), min_size=2))
def test_families_sort_by_their_bytes(found):
    def in_words(name: tuple[str | None, bytes]) -> tuple[bool, bytes, bytes]:
        return name[0] is not None, (name[0] or "").encode(), name[1]

    assert sorted(found, key=lambda name: keys.tail(0, *name)) == sorted(found, key=in_words)


@pytest.mark.parametrize(
    "text",
    ["0000.0.", "0000.0.a-", "0000.2.00", "00.0.00", "0000.0.0", "0000.0.01", "zzzz.0.00", "0000.00", "0000.1zz.00"],
)
def test_invalid_subject_is_not_read(text):
    with pytest.raises(ValueError, match="is not a key of a table"):
        keys.read_tail(text)


@pytest.mark.parametrize("count", [1, 3, 16, 1000])
def test_partitions_are_contiguous_ranges_of_all_hashes(count):
    ranges = [keys.hash_range(partition, count) for partition in range(count)]
    assert ranges[0][0] == 0
    assert ranges[-1][1] == 2**64 - 1
    assert all(before[1] + 1 == after[0] for before, after in pairwise(ranges))
    assert all(start * count >> 64 == end * count >> 64 == number for number, (start, end) in enumerate(ranges))


@pytest.mark.guarantee("tables-2")
def test_keys_spread_evenly():
    dice = random.Random(39)
    counts = Counter(keys.partition_of(None, dice.randbytes(dice.randint(1, 128)), 16) for _ in range(32_000))
    assert len(counts) == 16
    assert all(abs(count / 32_000 - 1 / 16) < 0.01 for count in counts.values())


@pytest.mark.guarantee("tables-2")
@given(FAMILIES.filter(lambda family: family is not None), KEYS, KEYS)
def test_family_is_in_one_partition(family, key, other):
    assert keys.partition_of(family, key, 64) == keys.partition_of(family, other, 64)


def test_the_hash_never_changes():
    found = [keys.partition_of(*key, 4096) for key in [(None, b"a"), ("a", b"a"), ("", b"a"), (None, b"\xff\0")]]
    assert found == [3311, 1050, 1581, 2244]


def test_sizes_are_checked_before_anything_is_sent():
    keys.check_key("é" * 768, b"k" * 1024)
    with pytest.raises(UsageError, match="Family and key are 2,561 bytes"):
        keys.check_key("é" * 768, b"k" * 1025)
    with pytest.raises(UsageError, match="The key is 2,561 bytes"):
        keys.check_key(None, b"k" * 2561)
    with pytest.raises(UsageError, match="empty"):
        keys.check_key("family", b"")
    with pytest.raises(UsageError, match="UTF-8"):
        keys.check_key("\udcff", b"k")


def test_table_has_a_name_of_at_most_128_characters_and_at_most_4096_partitions():
    config = TableConfig("x" * 128, partitions=4096)
    assert (len(config.name), config.partitions) == (128, 4096)
    with pytest.raises(UsageError, match="129 characters, the maximum is 128"):
        TableConfig("x" * 129)
    with pytest.raises(UsageError, match="1 to 4,096 partitions, not 4,097"):
        TableConfig("x", partitions=4097)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("a", b"a"),
        ("é", "é".encode()),
        ("hex:00fF", b"\0\xff"),
        ("base64:AP8=", b"\0\xff"),
        ("hexa:1", b"hexa:1"),
        ("\udcff", b"\xff"),
    ],
)
def test_key_is_parsed_from_text_or_bytes(text, key):
    assert keys.parse_key(text) == key


@pytest.mark.parametrize("text", ["hex:0", "hex:0g", "hex: 00", "base64:AP8", "base64:A P8="])
def test_invalid_notation_of_a_key_is_named(text):
    with pytest.raises(UsageError, match=text):
        keys.parse_key(text)
