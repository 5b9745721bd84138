"""Changes of a table in a file: NDJSON, or a list in YAML or JSON. [pure]"""

from __future__ import annotations

import codecs
import json
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from kvctl.documents import parser
from kvctl.errors import UsageError
from kvctl.phrases import quoted
from kvctl.suggest import did_you_mean
from kvctl.tables.changes import NO_VERSION, Change, Insert, Put, Remove, Version, named
from kvctl.tables.keys import check_key

VERBS = ("insert", "put", "remove")
FIELDS = (*VERBS, "value", "encoding", "key_encoding", "version", "family")
_ENCODINGS = ("utf-8", "base64")


def read_changes(content: bytes, source: str) -> list[Change]:
    """Return the changes in a file, in their order. Raises UsageError with the place of the problem."""
    lines = content.removeprefix(codecs.BOM_UTF8).split(b"\n")
    if _is_ndjson([line.strip() for line in lines if line.strip()]):
        places = [f"{source}:{number}" for number, line in enumerate(lines, 1) if line.strip()]
        items = [_object(line, place) for line, place in zip(filter(bytes.strip, lines), places, strict=True)]
        return _changes(items, places.__getitem__)
    document = parser.parse(content, source)
    if isinstance(document.data, dict):
        return _changes([document.data], lambda _: document.where())
    if not isinstance(document.data, list) or not document.data:
        raise UsageError(f"{source}: A batch must be a list of changes", hint="For example `[{put: KEY, value: TEXT}]`")
    return _changes(document.data, document.where)


def _is_ndjson(lines: list[bytes]) -> bool:
    """Return whether these non-empty lines are one object per line, not one object over several lines."""
    return len(lines) > 1 and lines[0].startswith(b"{") and (lines[0].endswith(b"}") or lines[1].startswith(b"{"))


def _object(line: bytes, where: str) -> Any:
    try:
        return json.loads(line, object_pairs_hook=_unique)
    except UsageError as error:
        raise UsageError(f"{where}: {error.message}") from None
    except (ValueError, RecursionError):
        raise UsageError(f"{where}: The line is not a JSON object") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    for name, count in Counter(name for name, _ in pairs).items():
        if count > 1:
            raise UsageError(f"`{name}` appears twice in one object")
    return dict(pairs)


def _changes(items: Sequence[Any], where: Callable[[int], str]) -> list[Change]:
    """Return the changes, each key once; `where` returns the place of an item by its number."""
    found: dict[tuple[str | None, bytes], int] = {}
    changes = []
    for number, item in enumerate(items):
        try:
            change = _change(item)
            first = found.setdefault((change.family, change.key), number)
            if first != number:
                raise UsageError(
                    f"{named(change.family, change.key)} appears twice in the batch, first at {where(first)}"
                )
        except UsageError as error:
            raise UsageError(f"{where(number)}: {error.message}", hint=error.hint) from None
        changes.append(change)
    return changes


def _change(item: Any) -> Change:
    if not isinstance(item, dict):
        raise UsageError("A change must be a mapping", hint="For example `{put: KEY, value: TEXT}`")
    _check_fields(item)
    verb = next(verb for verb in VERBS if verb in item)
    family = _text(item, "family") if item.get("family") is not None else None
    key = _bytes(item, verb, item.get("key_encoding", "utf-8"))
    version = Version.parse(_text(item, "version")) if item.get("version") is not None else NO_VERSION
    check_key(family, key)
    if verb == "remove":
        return Remove(key, version, family)
    value = _bytes(item, "value", item.get("encoding", "utf-8"))
    return Insert(key, value, family) if verb == "insert" else Put(key, value, version, family)


def _check_fields(item: dict[str, Any]) -> None:
    """Raise UsageError for fields that are unknown, missing, or cannot be combined."""
    for name in item:
        if name not in FIELDS:
            hint = did_you_mean(str(name), FIELDS, otherwise=f"Use one of {quoted(FIELDS)}")
            raise UsageError(f"`{name}` is not a field of a change", hint=hint)
    verbs = [verb for verb in VERBS if verb in item]
    if len(verbs) != 1:
        raise UsageError("A change needs exactly one of `insert`, `put` and `remove`", hint="Its value is the key")
    if verbs == ["remove"] and "value" in item:
        raise UsageError("`remove` takes no `value`")
    if verbs != ["remove"] and "value" not in item:
        raise UsageError(f"`{verbs[0]}` needs a `value`", hint="Use `''` for an empty value")
    if verbs == ["insert"] and item.get("version") is not None:
        raise UsageError(
            "`insert` takes no `version`: the entry must not exist", hint="Use `put` to write a given version"
        )


def _text(item: dict[str, Any], name: str) -> str:
    value = item[name]
    if not isinstance(value, str):
        raise UsageError(f"`{name}` must be text, not `{json.dumps(value)}`", hint="Quote the value")
    return value


def _bytes(item: dict[str, Any], name: str, encoding: Any) -> bytes:
    text = _text(item, name)
    if encoding not in _ENCODINGS:
        raise UsageError(f"`{encoding}` is not an encoding", hint=f"Use one of {quoted(_ENCODINGS)}")
    try:
        return b64decode(text, validate=True) if encoding == "base64" else text.encode()
    except ValueError:
        raise UsageError(f"`{name}` is not valid {'base64' if encoding == 'base64' else 'UTF-8'}") from None
