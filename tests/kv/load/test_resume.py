"""Rows of an interrupted load among the entries of their keys: each outcome is certain, or named as uncertain."""

import pytest

from kvctl.kv.load.reconcile import Outcome
from kvctl.kv.load.resume import _outcomes, _Write

LETTERS = {
    Outcome.WRITTEN: "W", Outcome.SUPERSEDED: "s", Outcome.MISSED: "M", Outcome.OVERTAKEN: "o", Outcome.UNKNOWN: "u",
}  # fmt: skip


def found(rows: list[_Write], stored: list[_Write], *, evicted: bool) -> str:
    """A letter for each row: `-` for one that is due."""
    outcomes = _outcomes(rows, stored, evicted=evicted)
    return "".join(LETTERS[outcomes[row.line]] if row.line in outcomes else "-" for row in rows)


@pytest.mark.parametrize(
    ("stored", "evicted", "outcomes"),
    [
        ([1, 2], False, "WW--"), ([0], False, "----"), ([0, 1, 0], False, "W---"),
        ([1, 3], False, "WMW-"), ([3], False, "MMW-"), ([2, 4, 0], False, "MWMW"),
        ([3], True, "ssW-"), ([2, 4], True, "sWMW"), ([0, 2], True, "sW--"),
        ([2, 0], True, "sW--"), ([0], True, "oooo"),
    ],
)  # fmt: skip
def test_a_row_below_a_stored_one_is_not_written_and_one_below_another_clients_only_if_it_was_not_stored(
    stored, evicted, outcomes
):
    rows = [_Write(line, None) for line in range(1, 5)]
    assert found(rows, [_Write(line, None) for line in stored], evicted=evicted) == outcomes


@pytest.mark.parametrize(
    ("stored", "outcomes"), [([1, 3], "WsW-"), ([1], "W---"), ([1, 0], "Wo--"), ([1, 0, 3], "WsW-")]
)
def test_a_row_with_a_ttl_may_have_expired(stored, outcomes):
    rows = [_Write(line, None, expires=line == 2) for line in range(1, 5)]
    assert found(rows, [_Write(line, None) for line in stored], evicted=False) == outcomes


@pytest.mark.parametrize(
    ("contents", "stored", "outcomes"),
    [
        ([7, None, 8], [(0, 7), (0, None)], "W--"), ([7, None, 8], [(0, 7), (0, 8)], "WMW"),
        ([7, None, 7], [(0, 7), (0, 7)], "WMW"), ([7, None, 7], [(0, 7)], "uuu"),
        ([7, None, 7, None], [(0, 7), (4, None)], "uuuW"), ([7], [(0, 9)], "-"),
    ],
)  # fmt: skip
def test_a_row_without_an_identity_is_recognized_by_its_content_if_no_other_has_it(contents, stored, outcomes):
    rows = [_Write(line, content) for line, content in enumerate(contents, 1)]
    assert found(rows, [_Write(*entry) for entry in stored], evicted=False) == outcomes
