"""Edit a bucket's fields in a stream configuration and keep everything else in it. [pure]"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from kvctl.errors import UsageError
from kvctl.jetstream.stream_info import StreamConfig
from kvctl.kv.stream_kind import reserved
from kvctl.units import duration_ns

MAX_HISTORY = 64
DUPLICATE_WINDOW = timedelta(minutes=2)
"""ADR-8: a shorter ttl is also the window."""

_NOTHING = timedelta()


@dataclass(frozen=True, slots=True)
class Republish:
    """Republishing of every stored message from subjects `source` to `destination`."""

    source: str
    destination: str
    headers_only: bool = False

    @classmethod
    def from_stream(cls, value: Mapping[str, Any]) -> Republish:
        """Parse the server's form."""
        return cls(value.get("src", ""), value.get("dest", ""), bool(value.get("headers_only")))


FIELDS: dict[str, Any] = {
    "description": "", "history": 1, "ttl": _NOTHING, "marker_ttl": _NOTHING, "replicas": 1, "storage": "file",
    "max_value_size": None, "max_bytes": None, "compress": False, "cluster": None, "tags": (), "republish": None,
    "metadata": {}, "atomic": False,
}  # fmt: skip
"""Fields of BucketConfig and their defaults."""
CLEARABLE = (*FIELDS, "metadata.KEY", "placement")
"""Fields that can be cleared; `placement` is cluster and tags together."""


def edited(stream: StreamConfig, changes: Mapping[str, Any], clear: Iterable[str] = ()) -> StreamConfig:
    """Return the stream configuration with fields of BucketConfig changed and everything else kept.

    `republish_headers_only` changes that switch alone. Metadata is merged. `clear` resets fields to their defaults
    (CLEARABLE). Only duplicate_window follows a ttl, as required by ADR-8. Raises UsageError for unknown fields and
    invalid values.
    """
    result: StreamConfig = json.loads(json.dumps(stream))
    for name in clear:
        _clear(result, name)
    for name, value in changes.items():
        _check(name, value)
        _SETTERS[name](result, value)
    _tie_duplicate_window(result, stream)
    return result


def _clear(stream: StreamConfig, text: str) -> None:
    name = text.replace("-", "_")
    if name == "metadata":
        kept = stream.get("metadata") or {}
        _put(stream, "metadata", {key: value for key, value in kept.items() if reserved(key)})
    elif name.startswith("metadata."):
        _clear_metadata(stream, text.partition(".")[2])
    elif name == "placement":
        stream.pop("placement", None)
    elif name in FIELDS:
        _SETTERS[name](stream, FIELDS[name])
    else:
        known = ", ".join(f"`{field.replace('_', '-')}`" for field in sorted(CLEARABLE))
        raise UsageError(f"`{text}` is not a field that can be cleared", hint=f"Use one of {known}")


def _clear_metadata(stream: StreamConfig, key: str) -> None:
    metadata = stream.get("metadata") or {}
    if reserved(key) or key not in metadata:
        raise UsageError(f"Metadata `{key}` is not set")
    del metadata[key]


def _tie_duplicate_window(stream: StreamConfig, before: StreamConfig) -> None:
    window, age = stream.get("duplicate_window", 0), stream.get("max_age", 0)
    if not window or age == before.get("max_age", 0):
        return  # an aggregate has no window, and fields that were not requested do not change
    longest = duration_ns(DUPLICATE_WINDOW)
    if 0 < age < longest:
        stream["duplicate_window"] = age
    elif window == before.get("max_age", 0):
        stream["duplicate_window"] = longest


# -- fields in the server's terms --------------------------------------------------------------------------


def _put(target: dict[str, Any], name: str, value: Any) -> None:
    """Set the field, or omit it when it is empty, as ADR-8's own JSON does."""
    if value:
        target[name] = value
    else:
        target.pop(name, None)


def _set_markers(stream: StreamConfig, value: timedelta) -> None:
    _put(stream, "subject_delete_marker_ttl", duration_ns(value))
    if value:
        stream["allow_msg_ttl"] = True  # permanent: servers refuse to turn it off again


def _set_placement(stream: StreamConfig, part: str, value: Any) -> None:
    placement = dict(stream.get("placement") or {})
    _put(placement, part, value)
    _put(stream, "placement", placement)


def _set_republish(stream: StreamConfig, value: Republish | None) -> None:
    if value is None:
        stream.pop("republish", None)
        return
    stream["republish"] = {"src": value.source, "dest": value.destination}
    if value.headers_only:
        stream["republish"]["headers_only"] = True


def _set_headers_only(stream: StreamConfig, value: bool) -> None:
    if not stream.get("republish"):
        raise UsageError("Nothing is republished", hint="Give `--republish SRC=DEST` with `--republish-headers-only`")
    _put(stream["republish"], "headers_only", value)


def _set_compress(stream: StreamConfig, value: bool) -> None:
    if value or stream.get("compression"):
        stream["compression"] = "s2" if value else "none"


def _set_metadata(stream: StreamConfig, value: Mapping[str, str]) -> None:
    _put(stream, "metadata", {**(stream.get("metadata") or {}), **value})


_SETTERS: dict[str, Callable[[StreamConfig, Any], None]] = {
    "description": lambda stream, value: _put(stream, "description", value),
    "history": lambda stream, value: stream.update(max_msgs_per_subject=value),
    "ttl": lambda stream, value: stream.update(max_age=duration_ns(value)),
    "marker_ttl": _set_markers,
    "replicas": lambda stream, value: stream.update(num_replicas=value),
    "storage": lambda stream, value: stream.update(storage=value),
    "max_value_size": lambda stream, value: stream.update(max_msg_size=value or -1),
    "max_bytes": lambda stream, value: stream.update(max_bytes=value or -1),
    "compress": _set_compress,
    "cluster": lambda stream, value: _set_placement(stream, "cluster", value),
    "tags": lambda stream, value: _set_placement(stream, "tags", list(value)),
    "republish": _set_republish,
    "republish_headers_only": _set_headers_only,
    "metadata": _set_metadata,
    "atomic": lambda stream, value: _put(stream, "allow_atomic", value),
}


# -- values that a server refuses or silently changes ------------------------------------------------------


def _check(name: str, value: Any) -> None:
    if name not in _SETTERS:
        raise UsageError(f"`{name}` is not a field of a bucket")
    problem = _PROBLEMS[name](value) if name in _PROBLEMS else None
    if problem:
        raise UsageError(f"`{name.replace('_', '-')}` {problem}")


def _metadata_problem(metadata: Mapping[str, str]) -> str | None:
    if "" in metadata:
        return "has an entry without a name"
    return next((f"`{name}` is reserved" for name in metadata if reserved(name)), None)


def _republish_problem(value: Republish | None) -> str | None:
    if value is not None and not (value.source and value.destination):
        return "needs two subjects, as in `$KV.orders.>=copies.>`"
    return None


def _at_least_one_byte(value: int | None) -> str | None:
    return "must be at least 1 byte" if value is not None and value < 1 else None


def _at_least(shortest: timedelta, text: str) -> Callable[[timedelta], str | None]:
    return lambda value: f"must be at least {text}" if value and value < shortest else None


_PROBLEMS: dict[str, Callable[[Any], str | None]] = {
    "history": lambda value: None if 1 <= value <= MAX_HISTORY else f"must be 1 to {MAX_HISTORY} (ADR-8), not {value}",
    "ttl": _at_least(timedelta(milliseconds=100), "100 ms"),
    "marker_ttl": _at_least(timedelta(seconds=1), "1 second"),
    "replicas": lambda value: None if 1 <= value <= 5 else f"must be 1 to 5, not {value}",
    "storage": lambda value: None if value in ("file", "memory") else f"must be `file` or `memory`, not `{value}`",
    "max_value_size": _at_least_one_byte,
    "max_bytes": _at_least_one_byte,
    "cluster": lambda value: "is empty" if value == "" else None,
    "tags": lambda value: "contains an empty tag" if "" in value else None,
    "republish": _republish_problem,
    "metadata": _metadata_problem,
}
