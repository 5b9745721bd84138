"""Versions and batches, before any server sees them."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvctl.errors import UsageError
from kvctl.tables.batch import MAX_BATCH, KeySpace, TableBatch, prepare
from kvctl.tables.changes import NO_VERSION, NOT_EXISTS, Change, Insert, Put, Remove, Version, named
from kvctl.tables.keys import partition_of

VERSIONS = st.builds(Version, st.integers(1, 2**60), st.integers(0, 4095), st.integers(0, 2**53))


def check_batch(changes: Sequence[Change], partitions: int, *, apart: bool) -> TableBatch:
    return prepare(changes, KeySpace("$KVT.T.1.", 1, partitions, apart, max_value=1 << 30))


@given(VERSIONS)
def test_version_round_trips_as_text(version):
    assert Version.parse(str(version)) == version


@given(VERSIONS, VERSIONS)
def test_versions_are_compared_by_all_fields(one, other):
    assert (one == other) == (str(one) == str(other))


@pytest.mark.parametrize("version", [NO_VERSION, NOT_EXISTS])
def test_special_versions_have_their_own_texts(version):
    assert Version.parse(str(version)) == version
    assert str(version) in ("no-version", "not-exists")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "1.2",
        "x.y.z",
        "0.1.1",
        "1.01.1",
        "1.1.-1",
        "1.1.1.1",
        "1.1.1\n",
        "Z.1.1",
        "1" * 13 + ".1.1",
        "1.100000.1",
        "1.1." + "1" * 20,
        "z" * 13 + ".1.1",
    ],
)
def test_invalid_version_is_refused(text):
    with pytest.raises(UsageError, match="is not a version"):
        Version.parse(text)


def test_batch_has_at_most_a_thousand_changes():
    changes = [Insert(b"%d" % number, b"") for number in range(MAX_BATCH + 1)]
    check_batch(changes[1:], 16, apart=False)
    with pytest.raises(UsageError, match="1,001 changes"):
        check_batch(changes, 16, apart=False)


def test_key_appears_once_in_a_batch():
    check_batch([Put(b"a", b""), Put(b"a", b"", family=""), Remove(b"a", family="f")], 16, apart=False)
    with pytest.raises(UsageError, match="`a` of family `f` appears twice"):
        check_batch([Put(b"a", b"", family="f"), Remove(b"a", family="f")], 16, apart=False)
    with pytest.raises(UsageError, match="`hex:ff` appears twice"):
        check_batch([Put(b"\xff", b""), Insert(b"\xff", b"")], 16, apart=False)


def test_batch_holds_at_most_32_mib_of_keys_and_values():
    half = bytes(16 << 20)
    check_batch([Put(b"a", half[1:]), Insert(b"b", half[2:]), Remove(b"c")], 16, apart=False)
    for last in (Remove(b"cc"), Insert(b"c", b"1")):
        with pytest.raises(UsageError, match="33,554,433 bytes, the maximum is 33,554,432"):
            check_batch([Put(b"a", half[1:]), Insert(b"b", half[2:]), last], 16, apart=False)


def test_batch_checks_every_key():
    with pytest.raises(UsageError, match="The key is empty"):
        check_batch([Put(b"a", b""), Remove(b"")], 16, apart=False)


def test_batch_within_a_partition_may_have_any_keys_of_it():
    keys = [b"%d" % number for number in range(20)]
    together = [key for key in keys if partition_of(None, key, 2) == 0]
    assert len(together) > 1
    check_batch([Put(key, b"") for key in together], 2, apart=True)
    with pytest.raises(UsageError, match="several partitions"):
        check_batch([Put(key, b"") for key in keys], 2, apart=True)
    check_batch([Put(keys[0], b"")], 16, apart=True)
    check_batch([Put(key, b"") for key in keys], 16, apart=False)


def test_version_is_special_when_it_is_no_state_of_an_entry():
    assert NO_VERSION.special
    assert NOT_EXISTS.special
    assert not Version(1, 0, 0).special
    assert not Version.parse("1.0.0").special
    assert Insert(b"a", b"").version == NOT_EXISTS
    assert Put(b"a", b"").version == Remove(b"a").version == NO_VERSION != NOT_EXISTS


@pytest.mark.parametrize(
    ("version", "text"),
    [
        (Version(1, 0, 0), "1.0.0"),
        (Version(35, 10, 99), "z.10.99"),
        (Version(36, 4095, 1), "10.4095.1"),
        (Version(36**12 - 1, 99999, 10**19 - 1), "z" * 12 + ".99999." + "9" * 19),
    ],
)
def test_version_is_written_in_base_36_and_decimals(version, text):
    assert str(version) == text
    assert Version.parse(text) == version


def test_key_in_a_message_is_text_or_hexadecimal_and_names_its_family():
    assert [named(None, b"a"), named("", b"a"), named("f", b"\xff")] == [
        "`a`",
        "`a` of family ``",
        "`hex:ff` of family `f`",
    ]
