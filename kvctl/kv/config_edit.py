"""Edit a bucket's fields in a stream configuration and keep everything else in it. [pure]"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from kvctl.errors import UsageError
from kvctl.jetstream.stream_info import StreamConfig
from kvctl.kv.settings import FIELDS, SETTINGS
from kvctl.kv.stream_kind import reserved
from kvctl.units import duration_ns

DUPLICATE_WINDOW = timedelta(minutes=2)
"""ADR-8: a shorter ttl is also the window."""
CLEARABLE = (*(row.name for row in SETTINGS.values() if row.clearable), "metadata.KEY", "placement")
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
        if name not in SETTINGS:
            raise UsageError(f"`{name}` is not a field of a bucket")
        SETTINGS[name].to_stream(result, value)
    _tie_duplicate_window(result, stream)
    return result


def _clear(stream: StreamConfig, text: str) -> None:
    name = text.replace("-", "_")
    if name == "metadata":
        kept = {key: value for key, value in (stream.pop("metadata", None) or {}).items() if reserved(key)}
        stream.update({"metadata": kept} if kept else {})
    elif name.startswith("metadata."):
        _clear_metadata(stream, text.partition(".")[2])
    elif name == "placement":
        stream.pop("placement", None)
    elif name in CLEARABLE:
        SETTINGS[name].to_stream(stream, FIELDS[name])
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
