"""Transactions as plain values: what may be said, how many messages it takes, what does not hold, how it is sent."""

from datetime import timedelta

import pytest

from kvctl.errors import KvctlError, UsageError
from kvctl.jetstream.api import Api
from kvctl.kv.conditional_write import EXPECTED
from kvctl.kv.entry import Entry, Operation
from kvctl.kv.resolve import Binding
from kvctl.kv.transaction.transaction import EXPECTED_OF, LIMIT, Transaction, batch_of
from kvctl.tokens import header_lines

HUB = Api.__new__(Api)
HUB.prefix = "$JS.hub.API"
TARGET = Binding("B", "KV_B", "$KV.B.", HUB)


def entry(key: str, revision: int, value: bytes = b"", operation: Operation = Operation.PUT) -> Entry:
    return Entry("B", key, value, revision, 0, operation)


class TestSaying:
    @pytest.mark.parametrize("key", ["", "a b", "a.*", "a.>", ".a", "_kv.x"])
    def test_invalid_key_is_refused(self, key):
        with pytest.raises(UsageError):
            Transaction().put(key, b"")
        with pytest.raises(UsageError):
            Transaction().expect(key, exists=True)

    def test_a_key_is_changed_once(self):
        with pytest.raises(UsageError, match="`a` is changed twice"):
            Transaction().put("a", b"").delete("a")

    def test_a_condition_says_something_and_does_not_contradict_itself(self):
        with pytest.raises(UsageError, match="is empty"):
            Transaction().expect("a")
        with pytest.raises(UsageError, match="contradicts itself"):
            Transaction().expect("a", absent=True, value=b"")
        with pytest.raises(UsageError):
            Transaction().expect("a", revision=-1)

    def test_a_ttl_is_a_second_at_least(self):
        with pytest.raises(UsageError, match="at least 1 second"):
            Transaction().put("a", b"", ttl=timedelta(seconds=0.5))

    def test_nothing_to_change_is_an_error(self):
        with pytest.raises(UsageError, match="has no changes"):
            Transaction().expect("a", exists=True).check()


class TestMessages:
    def test_guards_have_room_in_changes_without_a_condition(self):
        transaction = Transaction().expect("g", exists=True).expect("h", exists=True).put("a", b"").put("b", b"")
        assert transaction.messages == 2

    def test_a_change_with_a_condition_has_no_room(self):
        transaction = Transaction().expect("g", exists=True).create("a", b"")
        assert transaction.messages == 2
        assert Transaction().expect("g", exists=True).expect("a", revision=1).put("a", b"").messages == 2

    def test_conditions_on_one_key_take_one_message(self):
        transaction = Transaction().expect("g", exists=True).expect("g", value=b"1").expect("g", revision=2)
        assert transaction.put("a", b"").messages == 1

    def test_a_thousand_are_the_most_guards_included(self):
        transaction = Transaction()
        for number in range(LIMIT - 1):
            transaction.create(f"k.{number}", b"")
        transaction.expect("g", exists=True).check()
        with pytest.raises(UsageError, match=r"takes 1,001 messages, 2 of them for conditions .* the maximum is 1,000"):
            transaction.expect("h", exists=True).check()


class TestFailures:
    @pytest.mark.parametrize(
        ("transaction", "found", "said"),
        [
            (Transaction().expect("k", revision=3), None, "`k` was never written, not 3"),
            (Transaction().expect("k", revision=3), entry("k", 5), "`k` is at revision 5, not 3"),
            (Transaction().expect("k", revision=0), entry("k", 5), "`k` is at revision 5, not 0"),
            (
                Transaction().expect("k", revision=3),
                entry("k", 5, operation=Operation.DEL),
                "`k` is deleted, at revision 5, not 3",
            ),
            (Transaction().expect("k", exists=True), None, "`k` was never written"),
            (
                Transaction().expect("k", exists=True),
                entry("k", 5, operation=Operation.PURGE),
                "`k` is deleted, at revision 5",
            ),
            (Transaction().expect("k", absent=True), entry("k", 5), "`k` exists, at revision 5"),
            (Transaction().create("k", b""), entry("k", 5), "`k` exists, at revision 5"),
            (Transaction().update("k", b"", 4), entry("k", 5), "`k` is at revision 5, not 4"),
            (Transaction().expect("k", value=b"on"), entry("k", 5, b"off"), '`k` is "off" at revision 5, not "on"'),
            (
                Transaction().expect("k", value=b"\xff"),
                entry("k", 5, b"x" * 99),
                f'`k` is "{"x" * 60}…" (99 bytes) at revision 5, not 1 bytes of binary data',
            ),
            (Transaction().expect("k", value=b""), None, '`k` was never written, not ""'),
            (
                Transaction().expect("k", value=b""),
                entry("k", 5, operation=Operation.DEL),
                '`k` is deleted, at revision 5, not ""',
            ),
        ],
    )
    def test_failed_condition_is_reported_with_the_entry_found(self, transaction, found, said):
        assert [str(failure) for failure in transaction.failures({"k": found})] == [said]

    @pytest.mark.parametrize(
        ("transaction", "found"),
        [
            (Transaction().expect("k", revision=5), entry("k", 5)),
            (Transaction().expect("k", revision=5), entry("k", 5, operation=Operation.DEL)),
            (Transaction().expect("k", revision=0), None),
            (Transaction().expect("k", exists=True), entry("k", 5)),
            (Transaction().expect("k", absent=True), None),
            (Transaction().expect("k", absent=True), entry("k", 5, operation=Operation.PURGE)),
            (Transaction().expect("k", value=b""), entry("k", 5, b"")),
            (Transaction().delete("k"), None),
        ],
    )
    def test_condition_that_holds_is_not_a_failure(self, transaction, found):
        assert transaction.failures({"k": found}) == []

    def test_all_are_named_each_once(self):
        transaction = (
            Transaction().expect("a", revision=1).expect("b", absent=True).create("b", b"").update("c", b"", 9)
        )
        found = {"a": None, "b": entry("b", 2), "c": entry("c", 3)}
        assert [failure.key for failure in transaction.failures(found)] == ["a", "b", "c"]


def lines(headers: dict[str, str]) -> bytes:
    return header_lines(headers).encode()


class TestBatch:
    def test_changes_in_order_with_their_headers(self):
        transaction = (
            Transaction()
            .put("a", b"1", ttl=timedelta(seconds=30))
            .create("b", b"2")
            .update("c", b"3", 7)
            .delete("d")
            .purge("e", ttl=timedelta(minutes=1))
        )
        messages, places = batch_of(transaction, TARGET, {"b": 0, "c": 7})
        assert messages == [
            (b"$JS.hub.API.$KV.B.a", b"1", lines({"Nats-TTL": "30"})),
            (b"$JS.hub.API.$KV.B.b", b"2", lines({EXPECTED: "0"})),
            (b"$JS.hub.API.$KV.B.c", b"3", lines({EXPECTED: "7"})),
            (b"$JS.hub.API.$KV.B.d", b"", lines({"KV-Operation": "DEL"})),
            (b"$JS.hub.API.$KV.B.e", b"", lines({"KV-Operation": "PURGE", "Nats-Rollup": "sub", "Nats-TTL": "60"})),
        ]
        assert places == {"a": 1, "b": 2, "c": 3, "d": 4, "e": 5}

    def test_guards_ride_on_free_changes_then_on_repetitions_of_the_smallest(self):
        transaction = Transaction().create("a", b"12").put("b", b"1")
        for key in ("g", "h", "i"):
            transaction.expect(key, exists=True)
        messages, places = batch_of(transaction, TARGET, {"a": 0, "g": 4, "h": 5, "i": 6})

        def guard(key: str, revision: str) -> bytes:
            return lines({EXPECTED: revision, EXPECTED_OF: f"$KV.B.{key}"})

        assert [(subject[-1:], value, headers) for subject, value, headers in messages] == [
            (b"a", b"12", lines({EXPECTED: "0"})),
            (b"b", b"1", guard("g", "4")),
            (b"b", b"1", guard("h", "5")),
            (b"b", b"1", guard("i", "6")),
        ]
        assert places == {"a": 1, "b": 4}

    def test_a_repeated_purge_rolls_up_once(self):
        transaction = Transaction().expect("a", revision=3).expect("g", revision=1).purge("a")
        (_, _, first), (_, _, second) = batch_of(transaction, TARGET, {"a": 3, "g": 1})[0]
        assert first == lines({"KV-Operation": "PURGE", "Nats-Rollup": "sub", EXPECTED: "3"})
        assert second == lines({"KV-Operation": "PURGE", EXPECTED: "1", EXPECTED_OF: "$KV.B.g"})


def test_the_conflict_is_a_kvctl_error_with_code_4():
    from kvctl.kv.transaction.transaction import refusal

    error = refusal("B", Transaction().create("k", b"").failures({"k": entry("k", 5)}))
    assert isinstance(error, KvctlError)
    assert (error.exit_code, len(error.failures)) == (4, 1)
