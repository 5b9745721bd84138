"""Rows noted in any order: the last one of a key shows above which revision a later one is."""

from kvctl.kv.load.acknowledged import Acknowledged


def test_a_row_looked_up_after_later_ones_does_not_lower_the_floor() -> None:
    acknowledged = Acknowledged(0)
    acknowledged.note_all(3, ("k", "other"), (7, 8))
    acknowledged.note(1, "k", 5)
    assert acknowledged.floor(9, "k") == 7
    acknowledged.note(2, "k", 6)
    assert acknowledged.floor(9, "k") == 7
