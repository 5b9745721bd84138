"""Changes of a table in a file: NDJSON, or a list in YAML or JSON. [pure]"""

from __future__ import annotations

import binascii
import json
from base64 import b64decode
from difflib import get_close_matches
from typing import Any, NoReturn

from kvctl import documents
from kvctl.errors import UsageError
from kvctl.tables.changes import NO_VERSION, Change, Insert, Put, Remove, Version
from kvctl.tables.keys import check_key

VERBS = ("insert", "put", "remove")
FIELDS = (*VERBS, "value", "encoding", "key_encoding", "version", "family")
_ENCODINGS = ("utf-8", "base64")


def read_changes(content: bytes, source: str) -> list[Change]:
    """The changes in a file, in their order. Raises UsageError that says where something is wrong."""
    lines = content.split(b"\n")
    if len([line for line in lines if line.strip()]) > 1 and lines[0].lstrip().startswith(b"{"):
        places = [(line, f"{source}:{number}") for number, line in enumerate(lines, 1) if line.strip()]
        return [_change(_object(line, where), where) for line, where in places]
    document = documents.parse(content, source)
    found = [document.data] if isinstance(document.data, dict) else document.data
    if not isinstance(found, list) or not found:
        raise UsageError(f"{source}: A batch is a list of changes", hint="As in `[{put: KEY, value: TEXT}]`")
    alone = isinstance(document.data, dict)
    return [_change(item, document.where(*(() if alone else (number,)))) for number, item in enumerate(found)]


def _object(line: bytes, where: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        raise UsageError(f"{where}: This is no JSON object") from None


def _change(item: Any, where: str) -> Change:
    if not isinstance(item, dict):
        _fail(where, "A change is a mapping", "As in `{put: KEY, value: TEXT}`")
    for name in item:
        if name not in FIELDS:
            near = get_close_matches(name, FIELDS, n=1)
            _fail(
                where,
                f"`{name}` is not a field of a change",
                f"Did you mean `{near[0]}`?" if near else f"One of {', '.join(FIELDS)}",
            )
    verbs = [verb for verb in VERBS if verb in item]
    if len(verbs) != 1:
        _fail(where, "A change has one of `insert`, `put` and `remove`", "It names the key")
    verb = verbs[0]
    family = _text(item, "family", where) if item.get("family") is not None else None
    key = _bytes(item, verb, item.get("key_encoding", "utf-8"), where)
    version = Version.parse(_text(item, "version", where)) if item.get("version") is not None else NO_VERSION
    check_key(family, key)
    if verb == "remove":
        if "value" in item:
            _fail(where, "`remove` takes no `value`", None)
        return Remove(key, version, family)
    if "value" not in item:
        _fail(where, f"`{verb}` needs a `value`", "`''` is an empty one")
    value = _bytes(item, "value", item.get("encoding", "utf-8"), where)
    if verb == "insert":
        if version != NO_VERSION:
            _fail(where, "`insert` takes no `version`: the entry must not exist", "`put` takes one")
        return Insert(key, value, family)
    return Put(key, value, version, family)


def _text(item: dict[str, Any], name: str, where: str) -> str:
    value = item[name]
    if not isinstance(value, str):
        _fail(where, f"`{name}` is text, this is `{json.dumps(value)}`", "Put it into quotes")
    return value


def _bytes(item: dict[str, Any], name: str, encoding: Any, where: str) -> bytes:
    text = _text(item, name, where)
    if encoding not in _ENCODINGS:
        _fail(where, f"`{encoding}` is not an encoding", f"One of {', '.join(_ENCODINGS)}")
    try:
        return b64decode(text, validate=True) if encoding == "base64" else text.encode()
    except (binascii.Error, ValueError):
        _fail(where, f"`{name}` is no {'base64' if encoding == 'base64' else 'UTF-8'}", None)


def _fail(where: str, problem: str, hint: str | None) -> NoReturn:
    raise UsageError(f"{where}: {problem}", hint=hint)
