"""Ranges of keys against plain comparisons of bytes, and tokens that resume a scan, without a server."""

from itertools import product

import pytest

from kvctl.errors import UsageError
from kvctl.tables.keys import within_family
from kvctl.tables.ranges import Families, Range, continuation, resume
from kvctl.tokens import token

KEYS = [bytes(key) for count in (1, 2, 3) for key in product((0, 1, 0x61, 0xFE, 0xFF), repeat=count)]
BOUNDS = [None, b"", b"\0", b"a", b"a\0", b"a\xff", b"\xff", b"\xff\xff"]
PREFIXES = [b"", b"\0", b"a", b"a\xfe", b"a\xff", b"a\xff\xff", b"\xff", b"\xff\xff", b"\xff\xff\xff"]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_range_takes_the_keys_with_its_prefix_between_its_bounds(prefix):
    for start, end in product(BOUNDS, repeat=2):
        of = Range(prefix=prefix, start=start, end=end)
        expected = [
            key for key in KEYS if key.startswith(prefix) and key >= (start or b"") and (end is None or key <= end)
        ]
        assert [key for key in KEYS if of.bounds.take(token(key))] == expected, of


def test_range_is_complete_without_prefix_and_bounds():
    assert Range().complete
    assert Range("f").complete
    assert not Range(prefix=b"a").complete
    assert not Range(start=b"").complete
    assert not Range(end=b"\xff").complete


def test_range_reads_the_subjects_of_its_families():
    assert Range().tokens == "*.*"
    assert Range(Families.ALL).tokens == "*.*"
    assert Range(None).tokens == "0.*"
    assert Range("").tokens == f"{within_family('')}.*" != Range(None).tokens
    assert Range("a").tokens == f"{within_family('a')}.*"


RANGES = [
    Range(),
    Range(None),
    Range(""),
    Range("all"),
    Range("a"),
    Range(prefix=b"a"),
    Range(start=b"a"),
    Range(end=b"a"),
    Range(start=b""),
    Range(prefix=b"a", start=b"b", end=b"c"),
]


@pytest.mark.parametrize("last", [b"", b"0.61", b"0.6", b"0.616", b"0.6161"])
def test_token_resumes_only_its_own_range(last):
    for one, other in product(RANGES, repeat=2):
        text = continuation("T", 7, one, last)
        assert text.isascii()
        assert "=" not in text
        if one == other:
            assert resume(text, "T", 7, other) == last
        else:
            with pytest.raises(UsageError, match="another range"):
                resume(text, "T", 7, other)


def test_token_of_another_table_or_life_is_refused():
    text = continuation("T", 7, Range(), b"0.61")
    with pytest.raises(UsageError, match="another table"):
        resume(text, "U", 7, Range())
    with pytest.raises(UsageError, match="another instance of the table"):
        resume(text, "T", 8, Range())
