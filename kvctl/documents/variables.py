"""Variables of the environment in documents: `${NAME}`, and `${NAME:-default}` with a default. [pure]

Variables stand in keys and in texts. `$${` is a literal `${`; any other `$` is literal anyway.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from kvctl.documents.parser import Document, Path, Place

ALLOWED = "KVCTL_FILE_VARIABLES"
"""Variable that names the only ones a document may use, separated by spaces or commas; any if it is not set."""
SECRET = frozenset("NATS_PASSWORD NATS_TOKEN NATS_NKEY NATS_CREDS NATS_KEY".split())
"""Variables with credentials of connections, which no document may use."""
SHORTEST_PART = 4
"""Minimum length of a variable's value that is hidden as a part of a text; shorter ones are parts of other words."""

_TOKEN = re.compile(r"(?P<escaped>\$\$\{)|\$\{(?P<inside>[^}]*)(?P<end>\}?)")
_INSIDE = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>(?:(?!\$\{).)*))?\Z", re.DOTALL)
"""Inside of a variable. A variable in a default is refused: its text would be taken as it stands."""


class SubstitutedText(str):
    """Text with the value of a variable in it: a field that is not text reads it as if it were not quoted."""

    source: str
    """The text in the file."""
    parts: tuple[tuple[str, str], ...] = ()
    """Values from the environment, each with its variable."""


def expanded(document: Document, environment: Mapping[str, str]) -> Document:
    """Return the document with its variables replaced; variables without a value are among its problems."""
    work = _Expansion(document, environment)
    data = work.value(document.data, (), ())
    if not work.found:
        return document
    return replace(document, data=data, places=work.places, problems=tuple(work.problems), text="")


def escaped(data: Any) -> Any:
    """Return data that a file has to contain in order to mean these texts, the reverse of `expanded`."""
    if isinstance(data, str):
        return data.replace("${", "$${")
    if isinstance(data, list):
        return [escaped(item) for item in data]
    return {escaped(key): escaped(item) for key, item in data.items()} if isinstance(data, dict) else data


def hidden(message: str, texts: Iterable[SubstitutedText]) -> str:
    """Return a message with texts from variables as they are in the file: the values may be secret."""
    for text in texts:
        message = message.replace(f"`{text}`", f"`{text.source}`")
        for value, source in text.parts:
            if len(value) >= SHORTEST_PART:
                message = message.replace(value, source)
    return message


def texts(data: Any, path: Path = ()) -> Iterator[tuple[Path, SubstitutedText]]:
    """Yield each value that comes from variables, with its path."""
    if isinstance(data, SubstitutedText):
        yield path, data
    elif isinstance(data, dict | list):
        for step, value in data.items() if isinstance(data, dict) else enumerate(data):
            yield from texts(value, (*path, step))


def mark(data: Any, path: Path, source: str) -> None:
    """Mark the text at a path as one that comes from variables. Raises LookupError, TypeError."""
    *outer, last = path
    for step in outer:
        data = data[step]
    data[last] = _substituted(data[last], source, ())


class _Expansion:
    def __init__(self, document: Document, environment: Mapping[str, str]) -> None:
        self._document = document.located()
        self._environment = environment
        self.found = False
        self.places: dict[Path, Place] = {}
        self.problems: list[tuple[Path, str, str]] = []

    def value(self, value: Any, before: Path, after: Path) -> Any:
        """Return a value with variables replaced; its path contains keys, which may change."""
        place = self._document.place(*before)
        if place is not None:
            self.places[after] = place
        if isinstance(value, str):
            return self._text(value, after)
        if isinstance(value, list):
            return [self.value(item, (*before, number), (*after, number)) for number, item in enumerate(value)]
        return self._mapping(value, before, after) if isinstance(value, dict) else value

    def _mapping(self, value: dict[str, Any], before: Path, after: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, item in value.items():
            name = self._text(key, (*after, key))
            if name in found:
                self.places[(*after, name)] = self._document.place(*before, key) or (0, 0)
                self.problems.append(((*after, name), f"`{name}` appears twice, because of a variable", ""))
            found[name] = self.value(item, (*before, key), (*after, name))
        return found

    def _text(self, text: str, path: Path) -> str:
        if "${" not in text:
            return text
        self.found = True
        parts: list[tuple[str, str]] = []
        made = _TOKEN.sub(lambda token: self._replacement(token, path, parts), text)
        return _substituted(made, text, parts) if any(not token["escaped"] for token in _TOKEN.finditer(text)) else made

    def _replacement(self, token: re.Match[str], path: Path, parts: list[tuple[str, str]]) -> str:
        if token["escaped"]:
            return "${"
        inside = _INSIDE.match(token["inside"]) if token["end"] else None
        if inside is None:
            hint = "Write `${NAME}` or `${NAME:-DEFAULT}`; `$${` is a literal `${`"
            self.problems.append((path, f"`{token[0]}` is not a variable", hint))
            return token[0]
        value, refused = self._environment.get(inside["name"]), self._refused(inside["name"])
        if refused is not None:
            self.problems.append((path, *refused))
            return token[0]
        if not value and inside["default"] is not None:
            return inside["default"]
        if value is None:
            hint = f"Set it, or write a default: `${{{inside['name']}:-DEFAULT}}`"
            self.problems.append((path, f"Variable `{inside['name']}` is not set", hint))
            return token[0]
        parts.append((value, token[0]))
        return value

    def _refused(self, name: str) -> tuple[str, str] | None:
        """Return message and hint for a variable that a document may not use: its value would be printed and sent."""
        if name in SECRET:
            return f"Variable `{name}` is for connections, and its value is a secret", "Use another variable"
        allowed = self._environment.get(ALLOWED)
        if allowed is not None and name not in allowed.replace(",", " ").split():
            return f"Variable `{name}` is not among those of {ALLOWED}", f"Add it to {ALLOWED} unless it is a secret"
        return None


def _substituted(text: str, source: str, parts: Iterable[tuple[str, str]]) -> SubstitutedText:
    made = SubstitutedText(text)
    made.source, made.parts = source, tuple(parts)
    return made
