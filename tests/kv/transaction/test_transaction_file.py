"""The transaction file: what it may say, and where it is wrong."""

import json
from datetime import timedelta

import pytest

from kvctl.documents.parser import parse
from kvctl.errors import UsageError
from kvctl.kv.transaction.transaction import KeyCondition, Transaction, TransactionChange
from kvctl.kv.transaction.transaction_file import read_transaction

EVERYTHING = """
if:
  - {key: app.port, revision: 3}
  - {key: lock, absent: true}
  - {key: app.host, exists: true}
  - {key: mode, value: "on"}
  - {key: blob, value: /w==, encoding: base64}
then:
  - {put: app.port, value: "8081"}
  - {create: lock, value: me, ttl: 30s}
  - {update: mode, value: off, revision: 7}
  - {delete: app.old}
  - {purge: app.older, ttl: 1m, revision: 0}
  - {put: blob, value: AAE=, encoding: base64}
"""


def read(text: str, name: str = "t.yaml") -> Transaction:
    return read_transaction(parse(text.encode(), name))


def test_all_that_can_be_said():
    transaction = read(EVERYTHING)
    assert transaction.conditions == [
        KeyCondition("app.port", revision=3),
        KeyCondition("lock", absent=True),
        KeyCondition("app.host", exists=True),
        KeyCondition("mode", value=b"on"),
        KeyCondition("blob", value=b"\xff"),
    ]
    assert transaction.changes == [
        TransactionChange("put", "app.port", b"8081"),
        TransactionChange("create", "lock", b"me", ttl=timedelta(seconds=30)),
        TransactionChange("update", "mode", b"off", revision=7),
        TransactionChange("delete", "app.old"),
        TransactionChange("purge", "app.older", revision=0, ttl=timedelta(minutes=1)),
        TransactionChange("put", "blob", b"\0\1"),
    ]


def test_json_says_the_same():
    data = {"if": [{"key": "a", "revision": 1}], "then": [{"put": "a", "value": "ä"}, {"delete": "b"}]}
    transaction = read(json.dumps(data), "t.json")
    assert transaction.conditions == [KeyCondition("a", revision=1)]
    assert [change.value for change in transaction.changes] == ["ä".encode(), b""]


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("", "The transaction has no `then`", "Add `then: ["),
        ("then: []", "has no changes", ""),
        ("if: []", "has no `then`", "then"),
        ("then: {}", "`then` must be a list", ""),
        ("then:\n- put", "t.yaml:2:3: then[0]: A change must be a mapping", ""),
        ("then:\n- {put: a, value: '1'}\nelse: []", "t.yaml:3:1: else: `else` is not a field of a transaction", ""),
        ("then:\n- {put: a, value: 8081}", "then[0].value: `value` must be text, not a number", 'Quote it: `"8081"`'),
        ("then:\n- {put: a, value: true}", "must be text, not a boolean", 'Quote it: `"true"`'),
        ("then:\n- {put: a, value: 1.5}", "must be text, not a number", '"1.5"'),
        ("then:\n- {put: a, value: }", "`value` must be text, not empty", ""),
        ("then:\n- {put: a, value: [x]}", "must be text, not a list", ""),
        ("then:\n- {put: a}", "The change has no `value`", "value: ''"),
        ("then:\n- {put: 7, value: x}", "`put` must be text, not a number", '"7"'),
        ("then:\n- {put: a, vlaue: x}", "`vlaue` is not a field of a change", "Did you mean `value`?"),
        ("then:\n- {put: a, delete: b}", "`put` and `delete` cannot be combined", ""),
        ("then:\n- {value: a}", "A change needs `put`, `create`, `update`, `delete` or `purge`", ""),
        ("then:\n- {put: a, value: x, revision: 1}", "`revision` cannot be used with `put`", ""),
        ("then:\n- {delete: a, value: x}", "`value` cannot be used with `delete`", ""),
        ("then:\n- {update: a, value: x}", "The change has no `revision`", "`put`"),
        ("then:\n- {update: a, value: x, revision: '1'}", "The revision is not a whole number", "0 stands"),
        ("then:\n- {update: a, value: x, revision: true}", "The revision is not a whole number", ""),
        ("then:\n- {update: a, value: x, revision: -1}", "The revision is not a whole number", ""),
        ("then:\n- {put: a, value: x, ttl: 30}", "The ttl has no unit", "`30s`"),
        ("then:\n- {put: a, value: x, ttl: 30q}", "`30q` is not a duration", ""),
        ("then:\n- {put: a, value: x, ttl: 10ms}", "at least 1 second", ""),
        ("then:\n- {put: a, value: x, encoding: hex}", "`hex` is not a value of `encoding`", "`base64`"),
        ("then:\n- {put: a, value: '!', encoding: base64}", "`value` is not valid base64", ""),
        ("then:\n- {put: a.*, value: x}", "t.yaml:2:4: then[0].put: `a.*` is not a key", ""),
        ("then:\n- {put: a, value: x}\n- {delete: a}", "t.yaml:3:4: then[1].delete: `a` is changed twice", "once"),
        ("if:\n- {revision: 1}\nthen:\n- {delete: a}", "t.yaml:2:3: if[0]: The condition has no `key`", ""),
        ("if:\n- {key: a}\nthen:\n- {delete: a}", "The condition on `a` is empty", "`absent`"),
        ("if:\n- {key: a, exists: false}\nthen:\n- {delete: a}", "`exists` can only be `true`", "`absent: true`"),
        ("if:\n- {key: a, value: 1}\nthen:\n- {delete: a}", "`value` must be text, not a number", ""),
        ("if:\n- {key: a, encoding: base64}\nthen:\n- {delete: a}", "`encoding` requires `value`", ""),
        (
            "if:\n- {key: a, exist: true}\nthen:\n- {delete: a}",
            "is not a field of a condition",
            "Did you mean `exists`?",
        ),
        ("if: x\nthen:\n- {delete: a}", "`if` must be a list", ""),
    ],
)
def test_errors_name_the_position_and_the_fix(text, said, hint):
    with pytest.raises(UsageError) as caught:
        read(text)
    assert said in caught.value.message
    assert caught.value.message.startswith("t.yaml")
    assert hint in (caught.value.hint or "")
    assert caught.value.exit_code == 2


def test_all_errors_are_reported():
    with pytest.raises(UsageError) as caught:
        read("if:\n- {key: a, exists: false}\nthen:\n- {put: a}\n- {delete: b, ttl: 1s}\n- {put: c, value: x, ttl: 5}")
    assert caught.value.message.splitlines() == [
        "t.yaml has 4 errors:",
        "  t.yaml:2:12: if[0].exists: `exists` can only be `true`. Use `absent: true` for the opposite",
        "  t.yaml:4:3: then[0]: The change has no `value`. Write an empty one as `value: ''`",
        "  t.yaml:5:15: then[1].ttl: `ttl` cannot be used with `delete`",
        "  t.yaml:6:22: then[2].ttl: The ttl has no unit. Write it like `5s`",
    ]


def test_a_thousand_messages_are_the_most():
    changes = [{"put": f"k.{number}", "value": ""} for number in range(1000)]
    assert len(read(json.dumps({"then": changes})).changes) == 1000
    with pytest.raises(UsageError, match=r"1,001 messages; the maximum is 1,000"):
        read(json.dumps({"then": [*changes, {"delete": "x"}]}))
    guarded = {"if": [{"key": "g", "exists": True}], "then": [*changes[1:], {"create": "x", "value": ""}]}
    assert read(json.dumps(guarded)).messages == 1000  # a put has room for the guard
