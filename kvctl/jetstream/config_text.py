"""Text form of stream and consumer configurations: files and `path=value`. [pure]

Configurations are the server's own JSON. Durations may be written as `90s`, sizes as `10MB`, times as RFC 3339.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

from kvctl.errors import UsageError
from kvctl.phrases import quoted
from kvctl.suggest import did_you_mean
from kvctl.units import Ago, duration_ns, format_time, parse_duration, parse_instant, parse_size

Config = dict[str, Any]
Schema = Mapping[str, Any]
"""Type of each field: the name of a kind, its allowed words, a schema for an object, or a list of these."""

TEXT, NUMBER, FLAG, DURATION, SIZE, TIME, WORDS = "text", "number", "true or false", "duration", "size", "time", "map"

_TRANSFORM: Schema = {"src": TEXT, "dest": TEXT}
_SOURCE: Schema = {
    "name": TEXT,
    "opt_start_seq": NUMBER,
    "opt_start_time": TIME,
    "filter_subject": TEXT,
    "subject_transforms": [_TRANSFORM],
    "external": {"api": TEXT, "deliver": TEXT},
    "consumer": {"name": TEXT, "deliver_subject": TEXT},
}
STREAM: Schema = {
    "name": TEXT, "description": TEXT, "subjects": [TEXT], "retention": ("limits", "interest", "workqueue"),
    "max_consumers": NUMBER, "max_msgs": NUMBER, "max_bytes": SIZE, "max_age": DURATION,
    "max_msgs_per_subject": NUMBER, "max_msg_size": SIZE, "discard": ("old", "new"), "discard_new_per_subject": FLAG,
    "storage": ("file", "memory"), "num_replicas": NUMBER, "no_ack": FLAG, "template_owner": TEXT,
    "duplicate_window": DURATION, "placement": {"cluster": TEXT, "tags": [TEXT]}, "mirror": _SOURCE,
    "sources": [_SOURCE], "sealed": FLAG, "deny_delete": FLAG, "deny_purge": FLAG, "allow_rollup_hdrs": FLAG,
    "first_seq": NUMBER, "compression": ("none", "s2"), "subject_transform": _TRANSFORM,
    "republish": {"src": TEXT, "dest": TEXT, "headers_only": FLAG}, "allow_direct": FLAG, "mirror_direct": FLAG,
    "consumer_limits": {"inactive_threshold": DURATION, "max_ack_pending": NUMBER}, "allow_msg_ttl": FLAG,
    "subject_delete_marker_ttl": DURATION, "allow_atomic": FLAG, "allow_batched": FLAG, "allow_msg_counter": FLAG,
    "allow_msg_schedules": FLAG, "persist_mode": TEXT, "metadata": WORDS,
}  # fmt: skip
CONSUMER: Schema = {
    "name": TEXT, "durable_name": TEXT, "description": TEXT, "deliver_policy": TEXT, "opt_start_seq": NUMBER,
    "opt_start_time": TIME, "ack_policy": TEXT, "ack_wait": DURATION, "max_deliver": NUMBER, "backoff": [DURATION],
    "filter_subject": TEXT, "filter_subjects": [TEXT], "replay_policy": TEXT, "rate_limit_bps": NUMBER,
    "sample_freq": TEXT, "max_waiting": NUMBER, "max_ack_pending": NUMBER, "flow_control": FLAG,
    "headers_only": FLAG, "max_batch": NUMBER, "max_expires": DURATION, "max_bytes": SIZE, "deliver_subject": TEXT,
    "deliver_group": TEXT, "idle_heartbeat": DURATION, "inactive_threshold": DURATION, "num_replicas": NUMBER,
    "mem_storage": FLAG, "metadata": WORDS, "pause_until": TIME, "priority_groups": [TEXT], "priority_policy": TEXT,
    "priority_timeout": DURATION,
}  # fmt: skip
SERVER_METADATA = "_nats."


def assign(config: Config, text: str, schema: Schema) -> None:
    """Apply `path=value`: `max_age=1h`, `placement.tags=a,b`, `sources.0.name=X`; no value, or null, unsets.

    Raises UsageError for an unknown path, naming the nearest one, and for a value of another kind.
    """
    path, equals, value = text.partition("=")
    if not equals or not path:
        raise UsageError(
            f"`{text}` is not PATH=VALUE", hint="Write it as `--set max_age=1h` or `--set placement.cluster=lon`"
        )
    _assign(config, path.split("."), value, schema, path)


def read(document: Any, schema: Schema, source: Callable[..., str]) -> Config:
    """Parse a configuration from a file: an object, or the output of `show -o json`, which contains one.

    `source` returns the position of a path in the file. Raises UsageError.
    """
    path: tuple[str | int, ...] = ()
    if isinstance(document, dict) and isinstance(document.get("config"), dict):
        document, path = document["config"], ("config",)
    if not isinstance(document, dict):
        raise UsageError(f"{source()}: This is not an object with the fields of a configuration")
    found: Config = _value(document, schema, path, source)
    return found


def copied(config: Config) -> Config:
    """Return a copy to edit, without the server's own metadata."""
    copy = deepcopy(config)
    metadata = {name: text for name, text in (copy.pop("metadata", None) or {}).items() if not is_servers(name)}
    return copy | ({"metadata": metadata} if metadata else {})


def is_servers(name: str) -> bool:
    """Return True for metadata that the server itself keeps."""
    return name.startswith(SERVER_METADATA)


def is_relative(value: Any) -> bool:
    """Return True if a configuration has times relative to now."""
    if isinstance(value, dict | list):
        return any(map(is_relative, value.values() if isinstance(value, dict) else value))
    return isinstance(value, RelativeTime)


def dated(value: Any, now_ns: int) -> Any:
    """Resolve the configuration's relative times by the server's time."""
    if isinstance(value, dict):
        return {name: dated(item, now_ns) for name, item in value.items()}
    if isinstance(value, list):
        return [dated(item, now_ns) for item in value]
    return format_time(value.ago.on(now_ns)) if isinstance(value, RelativeTime) else value


# -- paths ---------------------------------------------------------------------------------------------------


def _assign(target: Any, steps: list[str], text: str, schema: Any, path: str) -> None:
    if schema == WORDS:
        _assign_word(target, ".".join(steps), text, path)
        return
    step, *rest = steps
    kind = _kind_of(step, schema, path)
    key: Any = step
    if isinstance(schema, list):
        key = int(step)
        if key > len(target):
            raise UsageError(f"`{path}`: the list has {len(target)} items", hint=f"Use `{len(target)}` to append one")
    if not rest:
        _assign_leaf(target, key, text, kind, path)
        return
    if isinstance(kind, str | tuple) and kind != WORDS:
        raise UsageError(f"`{path}` does not exist: `{step}` is a {_kind_name(kind)}")
    if isinstance(target, list) and key == len(target):
        target.append([] if isinstance(kind, list) else {})
    elif isinstance(target, dict) and not isinstance(target.get(key), list if isinstance(kind, list) else dict):
        target[key] = [] if isinstance(kind, list) else {}
    _assign(target[key], rest, text, kind, path)


def _kind_of(step: str, schema: Any, path: str) -> Any:
    if isinstance(schema, list):
        if not step.isdecimal():
            raise UsageError(f"`{path}`: `{step}` is not a position in a list", hint="Positions start at 0")
        return schema[0]
    if step not in schema:
        raise unknown_field(step, schema, f"`{path}`" if path != step else "")
    return schema[step]


def _assign_leaf(target: Any, key: Any, text: str, kind: Any, path: str) -> None:
    value = None if text in ("", "null") else _parsed(text, kind, path)
    if isinstance(target, list):
        target[key : key + 1] = [] if value is None else [value]
    elif value is None:
        target.pop(key, None)
    else:
        target[key] = value


def _assign_word(target: dict[str, Any], name: str, text: str, path: str) -> None:
    if is_servers(name):
        raise UsageError(f"`{path}` is reserved for the server")
    if text:
        target[name] = text
    else:
        target.pop(name, None)


def unknown_field(name: str, schema: Schema, where: str) -> UsageError:
    """Build the error for an unknown field; names the nearest one."""
    hint = did_you_mean(name, schema, otherwise=f"The fields are {quoted(sorted(schema))}")
    return UsageError(f"{where}: `{name}` is not a field" if where else f"`{name}` is not a field", hint=hint)


# -- values --------------------------------------------------------------------------------------------------


def _parsed(text: str, kind: Any, path: str) -> Any:
    """Parse the text of a value."""
    if isinstance(kind, list) and not text.startswith("["):
        if not isinstance(kind[0], str):
            raise UsageError(f"`{path}` is a list of objects: give JSON, or set its fields, as in `{path}.0.name=X`")
        return [_parsed(part, kind[0], path) for part in text.split(",")]
    if isinstance(kind, list | Mapping) or kind == WORDS:
        try:
            return _value(json.loads(text), kind, (), lambda *_: f"`{path}`")
        except ValueError:
            raise UsageError(
                f"`{path}` must be JSON, not `{text}`", hint=f"Or set its fields with `{path}.FIELD=VALUE`"
            ) from None
    if isinstance(kind, tuple):
        return _word(text, kind, path)
    if kind == FLAG:
        if text not in _FLAGS:
            raise UsageError(f"`{path}` must be true or false, not `{text}`")
        return _FLAGS[text]
    if kind == NUMBER or (kind in (SIZE, DURATION) and text.lstrip("-").isdecimal()):
        try:
            return int(text)
        except ValueError:
            raise UsageError(f"`{path}` must be a whole number, not `{text}`") from None
    return _from_text(text, kind)


def _word(value: Any, words: tuple[str, ...], where: str) -> Any:
    if value not in words:
        raise UsageError(f"`{where}` must be {quoted(words[:-1])} or `{words[-1]}`, not `{value}`")
    return value


def _kind_name(kind: Any) -> str:
    return "word" if isinstance(kind, tuple) else str(kind)


def _from_text(text: str, kind: str) -> Any:
    if kind == DURATION:
        return duration_ns(parse_duration(text))
    if kind == SIZE:
        return parse_size(text)
    return _time(text) if kind == TIME else text


class RelativeTime(str):
    """Time written as `-15m`: by the client's clock, until `dated` resolves it by the server's."""

    ago: Ago


def _time(text: str) -> str:
    found = parse_instant(text)
    if not isinstance(found, Ago):
        return format_time(found)
    relative = RelativeTime(format_time(found))
    relative.ago = found
    return relative


def _value(value: Any, kind: Any, path: tuple[str | int, ...], source: Callable[..., str]) -> Any:
    """Check a value from a document against its kind and convert it."""
    if value is None:
        return None
    if isinstance(kind, Mapping):
        _expect(value, dict, "an object", path, source)
        for name in value:
            if name not in kind:
                raise unknown_field(name, kind, source(*path, name))
        return {
            name: _value(item, kind[name], (*path, name), source) for name, item in value.items() if item is not None
        }
    if isinstance(kind, list):
        _expect(value, list, "a list", path, source)
        return [_value(item, kind[0], (*path, number), source) for number, item in enumerate(value)]
    if kind == WORDS:
        _expect(value, dict, "an object", path, source)
        return {name: text for name, text in value.items() if not is_servers(name)}
    if isinstance(value, str) and (kind in (DURATION, SIZE, TIME) or isinstance(kind, tuple)):
        try:
            return _word(value, kind, f"{path[-1]}") if isinstance(kind, tuple) else _from_text(value, kind)
        except UsageError as error:
            raise UsageError(f"{source(*path)}: {error.message}", hint=error.hint) from None
    wanted = {FLAG: bool, NUMBER: int, DURATION: int, SIZE: int}.get(kind, str)
    if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
        what = _kind_name(kind)
        raise UsageError(
            f"{source(*path)}: `{path[-1] if path else value}` must be a {what}, not `{json.dumps(value)}`"
        )
    return value


def _expect(value: Any, kind: type, text: str, path: tuple[str | int, ...], source: Callable[..., str]) -> None:
    if not isinstance(value, kind):
        raise UsageError(f"{source(*path)}: `{path[-1] if path else 'this'}` must be {text}")


_FLAGS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
