"""Transaction file: `{if: [{key, revision | exists | absent | value}], then: [{put: KEY, value}, ...]}`. [pure]"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, NoReturn

from kvctl.documents.parser import Document
from kvctl.errors import UsageError
from kvctl.kv.transaction.transaction import Transaction
from kvctl.phrases import quoted
from kvctl.suggest import did_you_mean
from kvctl.units import parse_duration

VERBS: Mapping[str, tuple[str, ...]] = {
    "put": ("value", "encoding", "ttl"),
    "create": ("value", "encoding", "ttl"),
    "update": ("value", "encoding", "ttl", "revision"),
    "delete": ("revision",),
    "purge": ("revision", "ttl"),
}
"""Fields allowed with each verb."""
CONDITION = ("key", "revision", "exists", "absent", "value", "encoding")
ENCODINGS = ("utf-8", "base64")

Path = tuple[str | int, ...]


def read_transaction(document: Document) -> Transaction:
    """Parse the transaction in a document. Raises UsageError with line, field, and the nearest valid field."""
    reader = _Reader(document)
    root = reader.mapping((), ("if", "then"), "a transaction")
    transaction = Transaction()
    for number in range(reader.length(("if",)) if "if" in root else 0):
        reader.add_condition(transaction, ("if", number))
    if "then" not in root:
        reader.fail((), "The transaction has no `then`", hint="Add `then: [{put: KEY, value: TEXT}]`")
    for number in range(reader.length(("then",))):
        reader.add_change(transaction, ("then", number))
    try:
        transaction.check()
    except UsageError as error:
        reader.fail(("then",), error.message, hint=error.hint)
    return transaction


class _Reader:
    """Reader of a document's fields that reports the position of errors."""

    def __init__(self, document: Document) -> None:
        self._document = document

    def add_condition(self, transaction: Transaction, path: Path) -> None:
        item = self.mapping(path, CONDITION, "a condition")
        if "key" not in item:
            self.fail(path, "The condition has no `key`")
        for name in ("exists", "absent"):
            if item.get(name, True) is not True:
                other = "absent" if name == "exists" else "exists"
                self.fail((*path, name), f"`{name}` can only be `true`", hint=f"Use `{other}: true` for the opposite")
        try:
            transaction.expect(
                self.text((*path, "key")),
                revision=self.revision((*path, "revision")) if "revision" in item else None,
                exists="exists" in item,
                absent="absent" in item,
                value=self.value(path) if "value" in item or "encoding" in item else None,
            )
        except UsageError as error:
            self._placed(path, error)

    def add_change(self, transaction: Transaction, path: Path) -> None:
        item = self.mapping(path, (*VERBS, "value", "encoding", "ttl", "revision"), "a change")
        verbs = [name for name in item if name in VERBS]
        if len(verbs) != 1:
            problem = f"A change has one of `{'`, `'.join(verbs)}`" if verbs else "The change has no operation"
            self.fail(path, problem, hint=f"Use one of {quoted(f'{verb}: KEY' for verb in VERBS)}")
        verb = verbs[0]
        for name in item:
            if name != verb and name not in VERBS[verb]:
                hint = "Use `update` with a revision" if name == "revision" else f"Its fields are {quoted(VERBS[verb])}"
                self.fail((*path, name), f"`{verb}` does not take `{name}`", hint=hint)
        settings: dict[str, Any] = {}
        if "value" in VERBS[verb]:
            settings["value"] = self.value(path)
        if verb == "update" and "revision" not in item:
            self.fail(path, "`update` needs the key's current `revision`", hint="Use `put` to write without one")
        if "revision" in item:
            settings["revision"] = self.revision((*path, "revision"))
        if "ttl" in item:
            settings["ttl"] = self.ttl((*path, "ttl"))
        try:
            getattr(transaction, verb)(self.text((*path, verb)), **settings)
        except UsageError as error:
            self._placed((*path, verb), error)

    def mapping(self, path: Path, known: tuple[str, ...], what: str) -> dict[str, Any]:
        """Return the fields at a path; unknown ones are errors."""
        found = self._at(path)
        if not isinstance(found, dict):
            self.fail(path, f"This is not {what}", hint=f"Its fields are {quoted(known)}")
        for name in found:
            if name not in known:
                hint = did_you_mean(str(name), known, otherwise=f"Its fields are {quoted(known)}")
                self.fail((*path, name), f"`{name}` is not a field of {what}", hint=hint)
        return found

    def length(self, path: Path) -> int:
        """Return the number of items in the list at a path."""
        found = self._at(path)
        if not isinstance(found, list):
            self.fail(path, f"`{path[-1]}` is not a list")
        return len(found)

    def text(self, path: Path) -> str:
        found = self._at(path)
        if not isinstance(found, str):
            self.fail(path, f"`{path[-1]}` is not text but {_kind(found)}", hint=_quoted(found))
        return found

    def revision(self, path: Path) -> int:
        found = self._at(path)
        if type(found) is not int or found < 0:
            self.fail(path, "The revision is not a whole number", hint="0 stands for a key never written")
        return int(found)

    def ttl(self, path: Path) -> timedelta:
        found = self._at(path)
        if type(found) is int:
            self.fail(path, "The ttl has no unit", hint=f"Write it like `{found}s`")
        try:
            return parse_duration(self.text(path))
        except UsageError as error:
            self._placed(path, error)

    def value(self, path: Path) -> bytes:
        """Return the field `value`, decoded as `encoding` says."""
        item = self._at(path)
        if "value" not in item:
            self.fail(path, "The change has no `value`", hint="Write an empty one as `value: ''`")
        text = self.text((*path, "value"))
        encoding = self.text((*path, "encoding")) if "encoding" in item else "utf-8"
        if encoding not in ENCODINGS:
            self.fail((*path, "encoding"), f"`{encoding}` is not an encoding", hint=f"Use {quoted(ENCODINGS)}")
        try:
            return text.encode() if encoding == "utf-8" else base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            self.fail((*path, "value"), f"The value is not {'text' if encoding == 'utf-8' else 'base64'}")

    def fail(self, path: Path, problem: str, hint: str | None = None) -> NoReturn:
        """Raise UsageError with the position."""
        where = f"{path[0]}[{path[1]}]: " if len(path) > 1 else ""
        raise UsageError(f"{self._document.where(*path)}: {where}{problem}", hint=hint)

    def _placed(self, path: Path, error: UsageError) -> NoReturn:
        self.fail(path, error.message, hint=error.hint)

    def _at(self, path: Path) -> Any:
        value = self._document.data
        for step in path:
            value = value[step]
        return value


def _kind(value: object) -> str:
    if value is None:
        return "empty"
    names = {bool: "a boolean", int: "a number", float: "a number", list: "a list", dict: "a mapping"}
    return names[type(value)]


def _quoted(value: object) -> str | None:
    if isinstance(value, bool):
        return f'Quote it: `"{str(value).lower()}"`'
    return f'Quote it: `"{value}"`' if isinstance(value, int | float) else None
