"""Tables of a document's fields, from which its reader and its JSON Schema follow. [pure]"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kvctl.documents.parser import Path
from kvctl.documents.reader import Reader
from kvctl.units import DURATION_PATTERN, SIZE_PATTERN

Schema = dict[str, Any]


class Type(NamedTuple):
    """Type of a value."""

    read: Callable[[Reader, Path], Any]
    """Reads it. Raises UsageError."""
    schema: Callable[[Schema], Schema]
    """Returns its JSON Schema, given the limits of a field."""


class Field(NamedTuple):
    """One field of a mapping."""

    type: Type
    says: str
    """Description for people who write the file."""
    limits: Mapping[str, Any] = {}
    """Limits of its values beyond their type, in terms of JSON Schema."""
    required: bool = False
    missing: str = ""
    """Hint if it is required and missing."""
    alias: bool = False
    """Another name of a field, which errors do not list."""

    def schema(self) -> Schema:
        """Return its JSON Schema."""
        return {"description": self.says, **self.type.schema(dict(self.limits))}


class Exclusive(NamedTuple):
    """At most one of two fields."""

    first: str
    second: str


class Requires(NamedTuple):
    """A field that has no meaning without another one."""

    name: str
    other: str


class OneAtLeast(NamedTuple):
    """One of these fields, or several."""

    names: tuple[str, ...]


Rule = Exclusive | Requires | OneAtLeast


class Record(NamedTuple):
    """A mapping with known fields."""

    what: str
    """Name with its article: `a bucket`."""
    fields: Mapping[str, Field]
    rules: Sequence[Rule] = ()

    @property
    def may_be_empty(self) -> bool:
        """True if it may have no field, and be null."""
        return not any(item.required for item in self.fields.values()) and not self._rules_of(OneAtLeast)

    def read(self, reader: Reader, path: Path) -> dict[str, Any]:
        """Read the fields at a path. Raises UsageError, with all errors among the reader's."""
        given = reader.mapping(path, self.what)
        found: dict[str, Any] = {}

        def one(name: str) -> None:
            if name not in self.fields:
                reader.unknown((*path, name), name, f"a field of {self.what}", sorted(self._listed()))
            found[name] = self.fields[name].type.read(reader, (*path, name))

        reader.each([*given, None], lambda name: self._check(reader, path, given) if name is None else one(name))
        return found

    def schema(self) -> Schema:
        """Return its JSON Schema."""
        required = [name for name, item in self.fields.items() if item.required]
        exclusive = [
            {"not": {"type": "object", "required": [rule.first, rule.second]}} for rule in self._rules_of(Exclusive)
        ]
        needs = {rule.name: [rule.other] for rule in self._rules_of(Requires)}
        least = [{"anyOf": [{"required": [name]} for name in rule.names]} for rule in self._rules_of(OneAtLeast)]
        return {
            "type": ["object", "null"] if self.may_be_empty else "object",
            "properties": {name: item.schema() for name, item in self.fields.items()},
            "additionalProperties": False,
            **({"required": required} if required else {}),
            **({"allOf": [*exclusive, *least]} if exclusive or least else {}),
            **({"dependentRequired": needs} if needs else {}),
        }

    def _listed(self) -> list[str]:
        return [name for name, item in self.fields.items() if not item.alias]

    def _rules_of(self, kind: type[Any]) -> list[Any]:
        return [rule for rule in self.rules if isinstance(rule, kind)]

    def _check(self, reader: Reader, path: Path, given: Mapping[str, Any]) -> None:
        """Check fields that are missing or cannot be combined."""
        noun = self.what.partition(" ")[2]

        def check(rule: Rule | str) -> None:
            if isinstance(rule, str):
                if rule not in given:
                    reader.fail(path, f"The {noun} has no `{rule}`", hint=self.fields[rule].missing or None)
            elif isinstance(rule, Exclusive):
                if rule.first in given and rule.second in given:
                    reader.fail(path, f"`{rule.first}` and `{rule.second}` cannot be combined")
            elif isinstance(rule, Requires):
                if rule.name in given and rule.other not in given:
                    reader.fail((*path, rule.name), f"`{rule.name}` requires `{rule.other}`")
            elif not set(rule.names) & given.keys():
                reader.fail(path, f"The {noun} needs {' or '.join(f'`{name}`' for name in rule.names)}")

        required: list[Rule | str] = [name for name, item in self.fields.items() if item.required]
        if not given.keys() <= self.fields.keys():
            return  # what is missing may be misspelled
        reader.each([*required, *self.rules], check)


class Choice(NamedTuple):
    """A mapping with other fields by which one of some fields it has."""

    what: str
    """Name with its article: `a change`."""
    records: Mapping[str, Record]
    """By the field that chooses."""

    def read(self, reader: Reader, path: Path) -> tuple[str, dict[str, Any]]:
        """Return the field that chooses, and all fields. Raises UsageError, with all errors among the reader's."""
        given = reader.mapping(path, self.what)
        chosen = [name for name in self.records if name in given]
        names = [f"`{name}`" for name in chosen or self.records]
        if len(chosen) != 1:
            listed = f"{', '.join(names[:-1])} {'and' if chosen else 'or'} {names[-1]}"
            capital = f"{self.what[:1].upper()}{self.what[1:]}"
            reader.fail(path, f"{listed} cannot be combined" if chosen else f"{capital} needs {listed}")
        record = self.records[chosen[0]]
        others = {name for other in self.records.values() for name in other.fields} - record.fields.keys()

        def refuse(name: str) -> None:
            if name in others:
                reader.fail((*path, name), f"`{name}` cannot be used with {names[0]}")

        reader.each(given, refuse)
        return chosen[0], record.read(reader, path)

    def schema(self) -> Schema:
        """Return its JSON Schema."""
        forms = {name: record.schema() for name, record in self.records.items()}
        needed = {name: dict.fromkeys([name, *form.get("required", ())]) for name, form in forms.items()}
        return {"oneOf": [{**form, "type": "object", "required": [*needed[name]]} for name, form in forms.items()]}


def check_types(values: Mapping[str, Any], declared: type) -> None:
    """Raise TypeError for a value that is not of the plain type, or types, that a class declares for its field."""
    for name, kind in declared.__annotations__.items():
        kinds = kind.replace("None", "NoneType").split(" | ")
        plain = {*kinds} <= {"str", "int", "bool", "NoneType"}
        if plain and name in values and type(values[name]).__name__ not in kinds:
            raise TypeError(f"`{name}` is not {kind}")


# -- types -------------------------------------------------------------------------------------------------


def list_of(item: Type, limits: Mapping[str, Any] | None = None, **schema: Any) -> Type:
    """Return the type of a list."""

    def read(reader: Reader, path: Path) -> tuple[Any, ...]:
        return tuple(reader.each(reader.items(path), lambda one: item.read(reader, one)))

    return Type(read, lambda more: {"type": "array", "items": item.schema(dict(limits or {})), **schema, **more})


def one_or_several(item: Type) -> Type:
    """Return the type of a list whose only item may stand alone."""

    def read(reader: Reader, path: Path) -> tuple[Any, ...]:
        paths = reader.items(path) if isinstance(reader.at(path), list) else [path]
        return tuple(reader.each(paths, lambda one: item.read(reader, one)))

    return Type(read, lambda limits: {"anyOf": [item.schema(limits), {"type": "array", "items": item.schema(limits)}]})


def one_of(words: Iterable[str]) -> Type:
    """Return the type of one of these words."""
    known = tuple(words)
    return Type(lambda reader, path: reader.word(path, known), lambda limits: {"enum": list(known), **limits})


def constant(value: Any, problem: str, hint: str | None = None) -> Type:
    """Return the type of a single value; `problem` is the error of another one."""

    def read(reader: Reader, path: Path) -> Any:
        found = reader.at(path)
        if type(found) is not type(value) or found != value:
            reader.fail(path, problem, hint=hint)
        return found

    return Type(read, lambda limits: {"const": value, **limits})


def version_field(version: int) -> Field:
    """Return the field of a file's version, for a reader that calls `require_version` first."""
    return Field(
        constant(version, ""), "Version of the file format", required=True, missing=f"Add `version: {version}`"
    )


def require_version(reader: Reader, version: int) -> None:
    """Fail for a file of another version, whose other fields may have another meaning."""
    root = reader.at(())
    found = root.get("version", version) if isinstance(root, dict) else version
    if type(found) is not int or found != version:
        reader.fail(("version",), f"This kvctl reads version {version}, not `{found}`")


def or_null(item: Type) -> Type:
    """Return a type that also has null, which is as if the field were missing."""
    return Type(
        lambda reader, path: None if reader.at(path) is None else item.read(reader, path),
        lambda limits: {"anyOf": [item.schema(limits), {"type": "null"}]},
    )


def checked(item: Type, check: Callable[[Any], Any]) -> Type:
    """Return a type whose values pass a check, which raises UsageError."""
    return Type(lambda reader, path: reader.checked(path, lambda: check(item.read(reader, path))), item.schema)


def _pairs(reader: Reader, path: Path) -> dict[str, str]:
    given = reader.at(path)
    if not isinstance(given, dict):
        reader.fail(path, f"`{path[-1]}` must be a mapping")

    def one(name: str) -> tuple[str, str]:
        return name, "" if given[name] == "" else reader.text((*path, name))

    return dict(reader.each(given, one))


def _text_schema(limits: Schema) -> Schema:
    return limits if "enum" in limits else {"type": ["string", "number"], "minLength": 1, **limits}


def _quantity(pattern: str, examples: list[str], number: Schema) -> Callable[[Schema], Schema]:
    text = {"type": "string", "pattern": f"^{pattern}$", "examples": examples}
    return lambda limits: {"anyOf": [text, number]}


TEXT = Type(Reader.text, _text_schema)
"""Text or a number, not empty."""
EXACT_TEXT = Type(Reader.exact_text, lambda limits: {"type": "string", **limits})
"""Text that may be empty, and is quoted if it looks like a number."""
INTEGER = Type(Reader.integer, lambda limits: {"type": "integer", **limits})
FLAG = Type(Reader.flag, lambda limits: {"type": "boolean", **limits})
DURATION = Type(Reader.duration, _quantity(f"(({DURATION_PATTERN})|0)", ["90s", "15m", "30d"], {"const": 0}))
SIZE = Type(Reader.limit, _quantity(f"(({SIZE_PATTERN})|none)", ["64KiB", "10MB"], {"type": "integer", "minimum": 1}))
PAIRS = Type(
    _pairs, lambda limits: {"type": "object", "additionalProperties": {"type": ["string", "number"]}, **limits}
)
"""Mapping of texts, which may be empty."""
TEXTS = one_or_several(TEXT)
ENCODING = one_of(("utf-8", "base64"))
"""Encoding of bytes in a text."""
