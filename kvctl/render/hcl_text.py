"""Terraform's own syntax of data in the shape of its JSON syntax, aligned as `terraform fmt` aligns.

Texts are written as they are: beginnings of templates have to be escaped in the data.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_NAME = re.compile(r"[A-Za-z_][\w-]*\Z", re.ASCII)
_SPECIAL = re.compile(r'["\\\x00-\x1f\x7f]')
_ESCAPES = {'"': r"\"", "\\": r"\\", "\n": r"\n", "\r": r"\r", "\t": r"\t"}
_REFERENCES = ("provider", "depends_on")
"""Arguments whose texts are references, not values."""


def dump_resources(document: Mapping[str, Any]) -> str:
    """Return the resources of a document as blocks, separated by empty lines."""
    blocks = [
        "\n".join([f'resource "{kind}" "{label}" {{', *_body(body, 1), "}", ""])
        for kind, labels in document.get("resource", {}).items()
        for label, body in labels.items()
    ]
    return "\n".join(blocks)


def _body(fields: Mapping[str, Any], depth: int) -> Iterator[str]:
    """Write the arguments of a block and the blocks in it. Lists of objects are blocks."""
    margin = "  " * depth
    arguments = {name: value for name, value in fields.items() if not _is_blocks(value)}
    yield from _aligned({name: _value(name, value, depth) for name, value in arguments.items()}, margin)
    first = not arguments
    for name, value in fields.items():
        for block in value if _is_blocks(value) else ():
            yield from () if first else ("",)
            yield f"{margin}{name} {{"
            yield from _body(block, depth + 1)
            yield f"{margin}}}"
            first = False


def _is_blocks(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, Mapping) for item in value)


def _aligned(arguments: Mapping[str, str], margin: str) -> Iterator[str]:
    """Align the equals signs of neighbours; an argument of several lines stands alone."""
    group: list[tuple[str, str]] = []
    for name, text in arguments.items():
        if "\n" in text:
            yield from _lines(group, margin)
            yield f"{margin}{name} = {text}"
            group = []
        else:
            group.append((name, text))
    yield from _lines(group, margin)


def _lines(group: Iterable[tuple[str, str]], margin: str) -> Iterator[str]:
    group = list(group)
    width = max((len(name) for name, _ in group), default=0)
    return (f"{margin}{name:{width}} = {text}" for name, text in group)


def _value(name: str, value: Any, depth: int) -> str:
    if name in _REFERENCES:
        return value if isinstance(value, str) else f"[{', '.join(value)}]"
    if isinstance(value, Mapping):
        inner = {_key(key): _value("", item, depth + 1) for key, item in value.items()}
        lines = "".join(f"{line}\n" for line in _aligned(inner, "  " * (depth + 1)))
        return f"{{\n{lines}{'  ' * depth}}}"
    if isinstance(value, list):
        return f"[{', '.join(_value('', item, depth) for item in value)}]"
    return _quoted(value) if isinstance(value, str) else json.dumps(value)


def _key(name: str) -> str:
    return name if _NAME.match(name) else _quoted(name)


def _quoted(text: str) -> str:
    return f'"{_SPECIAL.sub(_escaped, text)}"'


def _escaped(match: re.Match[str]) -> str:
    return _ESCAPES.get(match[0]) or f"\\u{ord(match[0]):04x}"
