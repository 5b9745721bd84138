"""Rows noted in any order: the ones of a key show above which revision another is, and if a later one is stored."""

from kvctl.kv.load.acknowledged import FLOOR_ROWS, FLOORS, Acknowledged


def test_a_row_looked_up_after_later_ones_does_not_lower_the_floor():
    acknowledged = Acknowledged(0)
    acknowledged.note_all(3, ("k", "other"), (7, 8))
    acknowledged.note(1, "k", 5)
    assert acknowledged.floor(9, "k") == 7
    acknowledged.note(2, "k", 6)
    assert acknowledged.floor(9, "k") == 7


def test_the_floor_of_a_row_between_acknowledged_ones_is_the_one_before_it():
    acknowledged = Acknowledged(0)
    acknowledged.note_all(1, ("k", "other", "other", "k"), (3, 4, 5, 6))
    assert [acknowledged.floor(line, "k") for line in (1, 2, 4, 5)] == [0, 3, 3, 6]
    assert [acknowledged.followed(line, "k") for line in (1, 3, 4)] == [True, True, False]
    assert not acknowledged.followed(1, "none")


def test_a_row_before_all_samples_is_above_the_revision_at_the_start():
    acknowledged = Acknowledged(7)
    for number in range(2 * FLOORS):
        acknowledged.sent_up_to(number * FLOOR_ROWS)
    assert acknowledged.floor(1, "k") == 7
    acknowledged.start_at(9)
    assert acknowledged.floor(1, "k") == 9
