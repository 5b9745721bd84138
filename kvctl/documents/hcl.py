"""Parse Terraform files to plain data, in the shape of Terraform's JSON syntax. [pure]

Blocks become lists of objects, by type and labels. Literal values become plain data. Everything else (references,
functions, operators, templates, heredocs) is kept as text: an `Expression`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from kvctl.documents.parser import MAX_DEPTH, decoded
from kvctl.errors import UsageError


class Expression(str):
    """Text of a value that only Terraform can compute."""


def parse(content: bytes, source: str) -> dict[str, Any]:
    """Parse the blocks and attributes in `content`. Raises UsageError with line and column."""
    return _Parser(decoded(content, source).replace("\r\n", "\n"), source).file()


def from_json(value: Any) -> Any:
    """Convert a value of Terraform's JSON syntax, whose texts are templates."""
    if isinstance(value, str):
        return _literal(value, value)
    if isinstance(value, list):
        return [from_json(item) for item in value]
    if isinstance(value, Mapping):
        return {from_json(name): from_json(item) for name, item in value.items()}
    return value


def escaped(value: Any) -> Any:
    """Return plain data with the beginnings of templates in its texts escaped, for both syntaxes."""
    if isinstance(value, str):
        return re.sub(r"[$%](?=\{)", r"\g<0>\g<0>", value)
    if isinstance(value, list):
        return [escaped(item) for item in value]
    if isinstance(value, Mapping):
        return {escaped(name): escaped(item) for name, item in value.items()}
    return value


def _literal(text: str, written: str) -> str:
    """Return a text without the escapes of templates, or an expression if it has a template."""
    if _TEMPLATE.search(text):
        return Expression(written)
    return text.replace("$${", "${").replace("%%{", "%{")


_TEMPLATE = re.compile(r"(?<!\$)\$\{|(?<!%)%\{")
_TOKEN = re.compile(
    r"""(?P<space>[ \t]+|\#[^\n]*|//[^\n]*)
    |(?P<comment>/\*)
    |(?P<newline>\n)
    |<<-?(?P<heredoc>[A-Za-z_][\w-]*)(?=\n)
    |(?P<number>\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)
    |(?P<word>[A-Za-z_][\w-]*)
    |(?P<quote>")
    |(?P<sign>.)""",
    re.DOTALL | re.VERBOSE,
)
_IN_QUOTES = re.compile(r'[^"\\$%\n]+|\\.|\$\$\{|%%\{|(?P<template>[$%]\{)|(?P<end>")|(?P<newline>\n)|.', re.DOTALL)
_IN_TEMPLATE = re.compile(r'[^"{}]+|(?P<quote>")|(?P<open>\{)|(?P<close>\})')
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\"}
_MAX_CODE_POINT, _SURROGATES = 0x10FFFF, range(0xD800, 0xE000)
_CONSTANTS = {"true": True, "false": False, "null": None}
_OPEN, _CLOSED = ("(", "[", "{"), (")", "]", "}")


@dataclass(frozen=True, slots=True)
class _Token:
    """A token: `word`, `number`, `text`, `sign`, `newline`, `end`, or `other` for what is not literal."""

    kind: str
    text: str
    begin: int
    end: int


class _NotLiteral(Exception):
    """An expression that is not a literal value."""


class _Parser:
    """Recursive descent over the tokens of one file."""

    def __init__(self, text: str, source: str) -> None:
        self._text = text
        self._source = source
        self._tokens = [*self._scan(0)]
        self._at = 0

    def file(self) -> dict[str, Any]:
        """Parse the file."""
        return self._body(0)

    def _body(self, depth: int) -> dict[str, Any]:
        """Parse arguments and blocks up to the closing brace, or the end of the file."""
        found: dict[str, Any] = {}
        if depth > MAX_DEPTH:
            self._fail("This is nested too deeply")
        while True:
            self._skip_newlines()
            token = self._next()
            if (token.text == "}" and depth) or (token.kind == "end" and not depth):
                return found
            if token.kind != "word":
                self._fail(f"Expected an argument or a block, not {_quoted(token)}", token)
            if self._peek().text != "=":
                self._block(found, token, depth)
            elif token.text in found:
                self._fail(f"`{token.text}` appears twice", token)
            else:
                self._next()
                found[token.text] = self._argument()

    def _block(self, found: dict[str, Any], name: _Token, depth: int) -> None:
        path = [name.text]
        while (token := self._next()).text != "{" or token.kind != "sign":
            if token.kind not in ("word", "text"):
                self._fail(f"Expected a block after `{name.text}`, not {_quoted(token)}", token)
            path.append(token.text)
        *heads, last = path
        for label in heads:
            found = found.setdefault(label, {})
        blocks = found.setdefault(last, []) if isinstance(found, dict) else None
        if not isinstance(blocks, list):
            self._fail(f"`{name.text}` is used in two ways", name)
        blocks.append(self._body(depth + 1))

    def _argument(self) -> Any:
        """Parse the value of an argument, which ends with its line."""
        begin = self._at
        try:
            value = self._value(0)
            if self._peek().kind in ("newline", "end") or self._peek().text == "}":
                return value
        except _NotLiteral:
            pass
        self._at = begin
        return self._expression()

    def _expression(self) -> Expression:
        """Skip an expression, to the end of its line outside of brackets, and return its text."""
        first, depth = self._peek(), 0
        last = first
        while (token := self._peek()).kind != "end":
            if depth == 0 and (token.kind == "newline" or (token.kind == "sign" and token.text in _CLOSED)):
                break
            if token.kind == "sign":
                depth += (token.text in _OPEN) - (token.text in _CLOSED)
            last = self._next()
        if self._peek() is first:
            self._fail("A value is missing", first)
        if depth:
            self._fail("A bracket is not closed", first)
        return Expression(" ".join(self._text[first.begin : last.end].split()))

    def _value(self, depth: int) -> Any:
        """Parse a literal value. Raises _NotLiteral for anything else."""
        if depth > MAX_DEPTH:
            self._fail("This is nested too deeply")
        token = self._next()
        if token.kind == "text":
            return token.text
        if token.kind == "number":
            return _number(token.text)
        if token.text == "-" and self._peek().kind == "number":
            return _number(f"-{self._next().text}")
        if token.kind == "word" and token.text in _CONSTANTS:
            return _CONSTANTS[token.text]
        if token.kind == "sign" and token.text in ("[", "{"):
            return self._list(depth) if token.text == "[" else self._object(depth)
        raise _NotLiteral

    def _list(self, depth: int) -> list[Any]:
        items: list[Any] = []
        while not self._closes("]"):
            items.append(self._value(depth + 1))
            self._skip_newlines()
            if self._peek().text == ",":
                self._next()
            elif self._peek().text != "]":
                raise _NotLiteral
        return items

    def _object(self, depth: int) -> dict[str, Any]:
        items: dict[str, Any] = {}
        while not self._closes("}"):
            name = self._next()
            if name.kind not in ("word", "text") or self._next().text not in ("=", ":"):
                raise _NotLiteral
            items[name.text] = self._value(depth + 1)
            if self._peek().text == ",":
                self._next()
            elif self._peek().kind != "newline" and self._peek().text != "}":
                raise _NotLiteral
        return items

    def _closes(self, bracket: str) -> bool:
        """Consume the closing bracket if it is next."""
        self._skip_newlines()
        token = self._peek()
        if token.kind == "end":
            raise _NotLiteral
        if token.kind == "sign" and token.text == bracket:
            self._next()
            return True
        return False

    def _skip_newlines(self) -> None:
        while self._peek().kind == "newline":
            self._next()

    def _peek(self) -> _Token:
        return self._tokens[self._at]

    def _next(self) -> _Token:
        token = self._tokens[self._at]
        self._at = min(self._at + 1, len(self._tokens) - 1)
        return token

    # -- tokens ----------------------------------------------------------------------------------------------

    def _scan(self, at: int) -> Iterator[_Token]:
        while (match := _TOKEN.match(self._text, at)) is not None:
            kind, begin, at = match.lastgroup or "", match.start(), match.end()
            if kind == "quote":
                at, literal = self._quoted_end(at)
                text = self._unescaped(begin + 1, at - 1) if literal else ""
                yield _Token("text" if literal else "other", text, begin, at)
            elif kind == "comment":
                at = self._text.find("*/", at) + 2
                if at == 1:
                    self._fail("A comment does not end", _Token("", "", begin, begin))
            elif kind == "heredoc":
                at = self._heredoc_end(match["heredoc"], at)
                yield _Token("other", "", begin, at)
            elif kind != "space":
                yield _Token(kind, match[0], begin, at)
        yield _Token("end", "", at, at)

    def _heredoc_end(self, mark: str, at: int) -> int:
        """Return the end of a text that begins here and ends with a line of its own."""
        end = re.compile(rf"\n[ \t]*{re.escape(mark)}(?=\n|\Z)").search(self._text, at)
        return end.end() if end else self._fail("A heredoc does not end", _Token("", "", at - len(mark), at))

    def _quoted_end(self, at: int, depth: int = 0) -> tuple[int, bool]:
        """Return the end of a quoted text that begins here, after its closing quote, and whether it is literal."""
        begin, literal = at, True
        if depth > MAX_DEPTH:
            self._fail("This is nested too deeply", _Token("", "", at, at))
        while (match := _IN_QUOTES.match(self._text, at)) is not None and match.lastgroup != "newline":
            at = match.end()
            if match.lastgroup == "end":
                return at, literal
            if match.lastgroup == "template":
                at, literal = self._template_end(at, depth + 1), False
        return self._fail("A quoted text does not end", _Token("", "", begin - 1, begin))

    def _template_end(self, at: int, depth: int) -> int:
        """Return the end of a template that begins here, after its closing brace."""
        braces = 1
        while braces and (match := _IN_TEMPLATE.match(self._text, at)) is not None:
            at = self._quoted_end(match.end(), depth)[0] if match.lastgroup == "quote" else match.end()
            braces += (match.lastgroup == "open") - (match.lastgroup == "close")
        return at

    def _unescaped(self, begin: int, end: int) -> str:
        def of(match: re.Match[str]) -> str:
            number = int(match[1] or match[2] or "0", 16)
            if match[3] is None and number <= _MAX_CODE_POINT and number not in _SURROGATES:
                return chr(number)
            if match[3] not in _ESCAPES:
                self._fail("An escape that Terraform does not allow", _Token("", "", begin + match.start(), end))
            return _ESCAPES[match[3]]

        return _literal(_ESCAPE.sub(of, self._text[begin:end]), "")

    def _fail(self, problem: str, token: _Token | None = None) -> NoReturn:
        at = (token or self._peek()).begin
        line, column = self._text.count("\n", 0, at) + 1, at - self._text.rfind("\n", 0, at)
        raise UsageError(f"{self._source}:{line}:{column}: {problem}")


def _quoted(token: _Token) -> str:
    return {"end": "the end of the file", "newline": "the end of the line"}.get(token.kind, f"`{token.text}`")


def _number(text: str) -> int | float:
    return int(text) if re.fullmatch(r"-?\d{1,19}", text) else float(text)
