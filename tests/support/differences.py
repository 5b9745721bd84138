"""What a failing comparison of thousands shows: its first differences."""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice, zip_longest
from typing import Any

NOTHING = "nothing"


def differences(found: Any, expected: Any) -> list[tuple[Any, Any, Any]]:
    """The first five places where two sequences, mappings or sets differ: place, what was found, what was expected."""
    return list(islice(_differing(found, expected), 5))


def _differing(found: Any, expected: Any) -> Iterator[tuple[Any, Any, Any]]:
    for place, one, other in _pairs(found, expected):
        if one != other:
            yield place, one, other


def _pairs(found: Any, expected: Any) -> Iterator[tuple[Any, Any, Any]]:
    if isinstance(expected, Mapping):
        return ((key, found.get(key, NOTHING), expected.get(key, NOTHING)) for key in {**expected, **found})
    if isinstance(expected, AbstractSet):
        members = sorted(set(found) ^ expected, key=repr)
        return ((member, *((member, NOTHING) if member in found else (NOTHING, member))) for member in members)
    assert isinstance(expected, Sequence)
    pairs = zip_longest(found, expected, fillvalue=NOTHING)
    return ((place, one, other) for place, (one, other) in enumerate(pairs))
