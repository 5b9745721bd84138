"""Transaction file: `{if: [{key, revision | exists | absent | value}], then: [{put: KEY, value}, ...]}`. [pure]"""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

from kvctl.documents.parser import Document, Path
from kvctl.documents.reader import Reader, read
from kvctl.documents.record import ENCODING, EXACT_TEXT, Choice, Field, Record, Requires, Type, constant, list_of
from kvctl.kv.transaction.transaction import Transaction
from kvctl.units import NEVER


def read_transaction(document: Document) -> Transaction:
    """Parse the transaction in a document. Raises UsageError with all errors, each with line and field."""
    return read(document, _transaction)


def _transaction(reader: Reader) -> Transaction:
    transaction, found = Transaction(), _ROOT.read(reader, ())
    for name, add in (("if", _add_condition), ("then", _add_change)):
        adds = [partial(add, reader, transaction, (name, at), item) for at, item in enumerate(found.get(name, ()))]
        reader.each(adds, lambda one: one())
    reader.checked(("then",), transaction.check)
    return transaction


def _add_condition(reader: Reader, transaction: Transaction, path: Path, found: dict[str, Any]) -> None:
    value = _value(reader, path, found) if "value" in found else None
    reader.checked(
        path,
        lambda: transaction.expect(
            found["key"],
            revision=found.get("revision"),
            exists="exists" in found,
            absent="absent" in found,
            value=value,
        ),
    )


def _add_change(reader: Reader, transaction: Transaction, path: Path, change: tuple[str, dict[str, Any]]) -> None:
    verb, found = change
    settings: dict[str, Any] = {name: found[name] for name in ("revision", "ttl") if name in found}
    if "value" in _CHANGE.records[verb].fields:
        settings["value"] = _value(reader, path, found)
    reader.checked((*path, verb), lambda: getattr(transaction, verb)(found[verb], **settings))


def _value(reader: Reader, path: Path, found: dict[str, Any]) -> bytes:
    return reader.decoded((*path, "value"), found["value"], found.get("encoding", "utf-8"))


# -- the fields --------------------------------------------------------------------------------------------


def _revision(reader: Reader, path: Path) -> int:
    found = reader.at(path)
    if type(found) is not int or found < 0:
        reader.fail(path, "The revision is not a whole number", hint="0 stands for a key never written")
    return int(found)


def _ttl(reader: Reader, path: Path) -> timedelta:
    found = reader.at(path)
    if type(found) is int:
        reader.fail(path, "The ttl has no unit", hint=f"Write it like `{found}s`")
    return NEVER if found == "never" else reader.duration(path)


_REVISION = Type(_revision, lambda limits: {"type": "integer", "minimum": 0, **limits})
_KEY = Field(EXACT_TEXT, "Key", required=True)
_VALUE = {
    "value": Field(EXACT_TEXT, "Value", required=True, missing="Write an empty one as `value: ''`"),
    "encoding": Field(ENCODING, "Encoding of the value"),
    "ttl": Field(Type(_ttl, lambda limits: {"type": "string", **limits}), "Lifetime of the entry"),
}
_AT = Field(_REVISION, "Revision of the key's last entry")
_NEEDED = Field(_REVISION, _AT.says, required=True, missing="Use `put` to write without one")
_CONDITION = Record(
    "a condition",
    {
        "key": _KEY,
        "revision": _AT,
        **{
            name: Field(constant(True, f"`{name}` can only be `true`", f"Use `{other}: true` for the opposite"), says)
            for name, other, says in (
                ("exists", "absent", "The key has a value"),
                ("absent", "exists", "The key was never written, or was deleted"),
            )
        },
        "value": Field(EXACT_TEXT, "Value of the key"),
        "encoding": _VALUE["encoding"],
    },
    [Requires("encoding", "value")],
)
_CHANGE = Choice(
    "a change",
    {
        verb: Record("a change", {verb: _KEY, **fields})
        for verb, fields in {
            "put": _VALUE,
            "create": _VALUE,
            "update": {**_VALUE, "revision": _NEEDED},
            "delete": {"revision": _AT},
            "purge": {"revision": _AT, "ttl": _VALUE["ttl"]},
        }.items()
    },
)
_ROOT = Record(
    "a transaction",
    {
        "if": Field(list_of(Type(_CONDITION.read, lambda _: _CONDITION.schema())), "Conditions, which must all hold"),
        "then": Field(
            list_of(Type(_CHANGE.read, lambda _: _CHANGE.schema())),
            "Changes",
            required=True,
            missing="Add `then: [{put: KEY, value: TEXT}]`",
        ),
    },
)
