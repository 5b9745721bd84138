"""Decisions about a row, from the entries of its key."""

from typing import Any

import pytest

from kvctl.jetstream.direct_get import StoredMessage
from kvctl.kv.bulk.rows import Row
from kvctl.pipeline.write.decision import Decider, Resolution, RowToWrite, WriteMode, WritePlan
from kvctl.pipeline.write.row_ids import RowIds, job_of, new_job

MOST = 1 << 20
IDS = RowIds("JOB", 3, MOST)


def of(history: int, **plan: Any) -> Decider:
    return Decider(WritePlan(ids=IDS, **plan), history)


def row(line: int, value: str = "v") -> Row:
    return Row(line, "k", value.encode())


def mine(sequence: int, line: int, value: str = "v", *, ids: RowIds = IDS) -> StoredMessage:
    return StoredMessage("S", "$KV.B.k", sequence, 0, ids.block(line, b"", value.encode()), value.encode())


def theirs(sequence: int, value: str = "w", header: bytes = b"") -> StoredMessage:
    return StoredMessage("S", "$KV.B.k", sequence, 0, header, value.encode())


PURGE = b"NATS/1.0\r\nKV-Operation: PURGE\r\nNats-Rollup: sub\r\n\r\n"


@pytest.mark.parametrize(
    ("history", "line", "value", "stored", "outcome"),
    [
        (1, 5, "v", [], Resolution.WRITE),
        (1, 5, "v", [mine(9, 5)], Resolution.STORED),
        (1, 5, "v", [theirs(9)], Resolution.STORED),  # nobody can tell
        (5, 5, "v", [theirs(9)], Resolution.WRITE),
        (2, 5, "v", [theirs(8), theirs(9)], Resolution.STORED),
        (5, 5, "v", [mine(8, 5), theirs(9)], Resolution.STORED),
        (5, 5, "v", [theirs(9, "", PURGE)], Resolution.STORED),
        (1, 5, "v", [mine(9, 7, "w")], Resolution.STORED),  # a later row of the key pushed it out
        (5, 5, "v", [mine(9, 7, "w")], Resolution.REFUSED),  # it would stand there, too
        (1, 5, "v", [mine(9, 2, "w")], Resolution.WRITE),
        (2, 5, "w", [mine(8, 3, "v"), mine(9, 7, "x")], Resolution.REFUSED),  # it would stand between them
        (2, 5, "w", [mine(8, 7, "x"), mine(9, 3, "v")], Resolution.STORED),
        (5, 5, "v", [mine(9, 2)], Resolution.WRITE),  # an earlier row with the same value
        (5, 5, "v", [mine(9, 2, "x")], Resolution.REFUSED),  # row 2 is another now, and so may this one be
        (1, 5, "v", [mine(9, 2, "x")], Resolution.REFUSED),
        (5, 5, "v", [mine(9, 12)], Resolution.STORED),  # in another order
        (5, 5, "v", [mine(9, 5, "x")], Resolution.REFUSED),
        (1, 5, "v", [mine(9, 5, "x")], Resolution.REFUSED),
        (5, 5, "v", [mine(9, 5, ids=RowIds("JOB", 4, MOST))], Resolution.WRITE),
        (5, 5, "v", [mine(9, 5, ids=RowIds("BOJ", 3, MOST))], Resolution.WRITE),
    ],
)
def test_retried_put_is_decided_by_stored_rows(history, line, value, stored, outcome):
    decider = of(history)
    decider.note([row(0, "a"), row(1, "b"), row(2, "v" if stored and b"v" == stored[0].payload else "w"), row(3)])
    decision = decider.decide(RowToWrite(row(line, value)), stored[-1] if stored else theirs(4), stored)
    assert decision.outcome is outcome, decision
    if outcome is Resolution.WRITE:
        assert decision.revision == (stored[-1].sequence if stored else 4)


def test_equal_rows_are_counted_separately():
    """In another order than before, each stored one stands for one of them."""
    decider = of(5)
    decider.note([row(0), row(1)])
    stored = [mine(9, 7)]
    assert decider.decide(RowToWrite(row(0)), stored[0], stored).outcome is Resolution.STORED
    assert decider.decide(RowToWrite(row(1)), stored[0], stored).outcome is not Resolution.STORED


def test_row_that_replaced_others_must_occur_again():
    """Without history it pushed them out, unless the plan gives other rows now."""
    decider, stored = of(1), mine(9, 4, "w")
    decider.note([row(0)])
    assert decider.decide(RowToWrite(row(0)), stored, [stored]).outcome is Resolution.STORED
    assert decider.owed == {9}
    decider.note([row(1, "x"), row(2, "w")])
    assert decider.decide(RowToWrite(row(2, "w")), stored, [stored]).outcome is Resolution.STORED
    assert not decider.owed
    assert decider.decide(RowToWrite(row(3, "y")), stored, [stored]).outcome is Resolution.WRITE


def test_row_that_others_overwrote_meanwhile_has_come_again():
    """It stood for an earlier one of its key, and is not there any more when it comes."""
    decider, stored = of(1), mine(9, 4, "w")
    decider.note([row(0)])
    assert decider.decide(RowToWrite(row(0)), stored, [stored]).outcome is Resolution.STORED
    assert decider.owed == {9}
    decider.note([row(1, "x"), row(2, "x"), row(3, "x"), row(4, "w")])
    assert decider.decide(RowToWrite(row(4, "w")), theirs(10), [theirs(10)]).outcome is Resolution.STORED
    assert not decider.owed


@pytest.mark.parametrize("mode", [WriteMode.CREATE, WriteMode.UPDATE])
def test_unknown_outcome_is_not_a_success_in_conditional_modes(mode):
    decision = of(1, mode=mode).decide(RowToWrite(row(0), 0), theirs(9), [theirs(9)])
    assert decision.outcome is Resolution.REFUSED
    assert decision.cause == "Unknown outcome: the key was at revision 9 since"


@pytest.mark.parametrize(
    ("mode", "expected", "last", "cause"),
    [
        (WriteMode.CREATE, None, theirs(9), "The key exists at revision 9"),
        (WriteMode.CREATE, None, theirs(9, "", PURGE), ""),
        (WriteMode.CREATE, None, None, ""),
        (WriteMode.UPDATE, 9, theirs(9), ""),
        (WriteMode.UPDATE, 8, theirs(9), "`k` is at revision 9, not 8"),
        (WriteMode.UPDATE, 8, None, "`k` does not exist; expected revision 8"),
        (WriteMode.PUT, None, theirs(9), ""),
    ],
)
def test_refused_row_is_known_not_to_be_stored(mode, expected, last, cause):
    """It is known not to be stored: what others have written since says nothing else."""
    since = [last] if last else []
    decision = of(1, mode=mode).decide(RowToWrite(row(0), expected), last, since, absent=True)
    assert decision.cause == cause
    assert (decision.outcome is Resolution.WRITE) == (not cause)


def test_a_refused_row_does_not_come_after_later_ones_of_its_key():
    asked, last = RowToWrite(row(0)), mine(9, 4, "w")
    decision = of(5).decide(asked, last, [last], absent=True)
    assert decision.cause == "A later row of the key was stored before it"
    assert of(1).decide(asked, last, [last], absent=True).outcome is Resolution.STORED


ELSEWHERE = RowIds("JOB", 4, MOST)
"""Ids of another partition of the job."""


@pytest.mark.parametrize(
    ("history", "value", "stored", "outcome"),
    [
        (1, "v", [mine(9, 1, ids=ELSEWHERE)], Resolution.STORED),
        (5, "v", [mine(8, 1, ids=ELSEWHERE), theirs(9)], Resolution.STORED),
        (1, "v", [mine(9, 1)], Resolution.STORED),  # at another place of this one
        (1, "v", [mine(9, 2, "x")], Resolution.STORED),  # another row of the key came last, here or there
        (1, "v", [mine(9, 7, "x", ids=ELSEWHERE)], Resolution.STORED),
        (5, "v", [mine(9, 7, "x", ids=ELSEWHERE)], Resolution.WRITE),  # all that came is there, and it is not
        (5, "v", [mine(9, 7, "x")], Resolution.WRITE),
        (1, "v", [mine(9, 1, ids=RowIds("BOJ", 4, MOST))], Resolution.STORED),  # nobody can tell
        (5, "v", [mine(9, 1, ids=RowIds("BOJ", 4, MOST))], Resolution.WRITE),
        (1, "v", [mine(9, 0, "a")], Resolution.WRITE),  # the row before it
        (2, "v", [mine(8, 0, "a"), theirs(9)], Resolution.STORED),
        (5, "v", [mine(7, 3, ids=ELSEWHERE), mine(8, 0, "a")], Resolution.WRITE),  # it comes after the row before it
        (5, "v", [mine(9, 6, "b")], Resolution.STORED),  # the row after it is there
    ],
)
def test_put_of_a_job_with_other_partitions(history, value, stored, outcome):
    decider = of(history, moved=True, lenient=True)
    decider.note([row(0, "a"), *(row(line, "w") for line in range(1, 5)), row(5), row(6, "b")])
    decision = decider.decide(RowToWrite(row(5, value)), stored[-1], stored)
    assert decision.outcome is outcome, decision
    assert not decider.owed


def test_rows_of_a_key_that_moved_keep_their_order():
    decider = of(5, moved=True, lenient=True)
    decider.note([row(0, "a"), row(1, "b"), row(2, "a")])
    stored = [mine(7, 1, "a", ids=ELSEWHERE), mine(8, 2, "b", ids=ELSEWHERE)]
    assert [decider.decide(RowToWrite(row(n, v)), stored[-1], stored) for n, v in enumerate("aba")] == [
        (Resolution.STORED, 7, ""),
        (Resolution.STORED, 8, ""),
        (Resolution.WRITE, 8, ""),
    ]


def test_other_rows_under_the_id_of_a_write_are_refused_in_other_partitions_too():
    decider = of(5, moved=True)
    decider.note([row(0)])
    assert decider.decide(RowToWrite(row(0)), mine(9, 7, ids=ELSEWHERE), [mine(9, 7, ids=ELSEWHERE)]).revision == 9
    assert decider.decide(RowToWrite(row(0)), mine(10, 0, "x"), [mine(10, 0, "x")]).outcome is Resolution.REFUSED


@pytest.mark.parametrize("history", [1, 2, 5])
def test_a_row_that_changed_nothing_is_not_missing(history):
    decider = of(history, if_different=True)
    decider.note([row(0, "old"), row(1, "new")])
    decision = decider.decide(RowToWrite(row(0, "old")), mine(9, 1, "new"), [mine(9, 1, "new")])
    assert decision.outcome is Resolution.STORED, decision


@pytest.mark.parametrize("history", [1, 5])
def test_a_row_that_may_have_expired_is_not_missing(history):
    decider = of(history)
    expiring = Row(1, "k", b"w", header=b"NATS/1.0\r\nNats-TTL: 1s\r\n\r\n")
    decider.note([row(0), expiring, row(2)])
    stored = [mine(7, 0), mine(9, 2)][-history:]
    assert decider.decide(RowToWrite(expiring), stored[-1], stored).outcome is Resolution.STORED
    if history > 1:
        assert decider.decide(RowToWrite(expiring), stored[-1], stored, absent=True).outcome is Resolution.REFUSED


def test_ids_are_read_back():
    job = new_job()
    ids = RowIds(job, 12, MOST)
    block = ids.block(77, b"NATS/1.0\r\nKV-Operation: DEL\r\n\r\n", b"v")
    assert ids.number(block) == 77
    assert block.endswith(b"\r\nKV-Operation: DEL\r\n\r\n")
    assert RowIds(job, 1, MOST).number(block) is None
    assert job_of("one") == job_of("one") != job_of("two")
    assert len(job_of("one")) == len(new_job()) == 8
