"""Typed keys and values as bytes (PDP-39's Serializer). [pure]"""

from __future__ import annotations

import json
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Serializer(Protocol[T]):
    """Lossless conversion to bytes and back; keys sort as their bytes do."""

    def serialize(self, value: T) -> bytes:
        """Return the value as bytes."""

    def deserialize(self, data: bytes) -> T:
        """Return the value of bytes. Raises ValueError for bytes that `serialize` does not return."""


class Bytes:
    """Bytes, unchanged."""

    def serialize(self, value: bytes) -> bytes:
        """Return the value unchanged."""
        return value

    def deserialize(self, data: bytes) -> bytes:
        """Return the bytes unchanged."""
        return data


class Text:
    """Text as UTF-8, which sorts by code points."""

    def serialize(self, value: str) -> bytes:
        """Return the text as UTF-8."""
        return value.encode()

    def deserialize(self, data: bytes) -> str:
        """Return the text. Raises ValueError."""
        return data.decode()


class Json:
    """JSON values in canonical form: members sorted, no whitespace."""

    def serialize(self, value: Any) -> bytes:
        """Return the value as JSON. Raises ValueError, TypeError for values that JSON does not have."""
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))
        return text.encode()

    def deserialize(self, data: bytes) -> Any:
        """Return the value. Raises ValueError."""
        return json.loads(data)
