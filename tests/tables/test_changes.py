"""Versions and batches, before any server sees them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvctl.errors import UsageError
from kvctl.tables.changes import MAX_BATCH, NO_VERSION, NOT_EXISTS, Insert, Put, Remove, Version, check_batch

VERSIONS = st.builds(Version, st.integers(1, 2**60), st.integers(0, 4095), st.integers(0, 2**53))


@given(VERSIONS)
def test_a_version_has_a_text_form_that_round_trips(version: Version) -> None:
    assert Version.parse(str(version)) == version


@given(VERSIONS, VERSIONS)
def test_versions_are_compared_by_all_that_they_say(one: Version, other: Version) -> None:
    assert (one == other) == (str(one) == str(other))


@pytest.mark.parametrize("version", [NO_VERSION, NOT_EXISTS])
def test_the_two_special_ones_have_texts_of_their_own(version: Version) -> None:
    assert Version.parse(str(version)) == version
    assert str(version) in ("no-version", "not-exists")


@pytest.mark.parametrize(
    "text", ["", "1", "1.2", "x.y.z", "0.1.1", "1.01.1", "1.1.-1", "1.1.1.1", "1.1.1\n", "Z.1.1", "1" * 13 + ".1.1"]
)
def test_what_is_no_version_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no version"):
        Version.parse(text)


def test_a_batch_takes_a_thousand_changes_and_no_more() -> None:
    changes = [Insert(b"%d" % number, b"") for number in range(MAX_BATCH + 1)]
    check_batch(changes[1:], 16, apart=False)
    with pytest.raises(UsageError, match="1,001 changes"):
        check_batch(changes, 16, apart=False)


def test_a_key_stands_once_in_a_batch() -> None:
    check_batch([Put(b"a", b""), Put(b"a", b"", family=""), Remove(b"a", family="f")], 16, apart=False)
    with pytest.raises(UsageError, match="`a` of family `f` is twice"):
        check_batch([Put(b"a", b"", family="f"), Remove(b"a", family="f")], 16, apart=False)
    with pytest.raises(UsageError, match="`hex:ff` is twice"):
        check_batch([Put(b"\xff", b""), Insert(b"\xff", b"")], 16, apart=False)


def test_a_batch_stays_within_a_partition_that_is_a_stream_of_its_own() -> None:
    keys = [b"%d" % number for number in range(20)]
    check_batch([Put(key, b"", family="one") for key in keys], 16, apart=True)
    with pytest.raises(UsageError, match="several partitions"):
        check_batch([Put(key, b"") for key in keys], 16, apart=True)
