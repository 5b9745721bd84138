"""Keys and values of a kind as bytes (PDP-39's Serializer). [pure]"""

from __future__ import annotations

import json
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Serializer(Protocol[T]):
    """To bytes and back, without loss; keys sort as their bytes do."""

    def serialize(self, value: T) -> bytes:
        """The value as bytes."""

    def deserialize(self, data: bytes) -> T:
        """The value that bytes stand for. Raises ValueError for what `serialize` does not write."""


class Bytes:
    """Bytes as they are."""

    def serialize(self, value: bytes) -> bytes:
        """The same."""
        return value

    def deserialize(self, data: bytes) -> bytes:
        """The same."""
        return data


class Text:
    """Text as UTF-8, which sorts by code points."""

    def serialize(self, value: str) -> bytes:
        """The text as UTF-8."""
        return value.encode()

    def deserialize(self, data: bytes) -> str:
        """The text. Raises ValueError."""
        return data.decode()


class Json:
    """What JSON has, in one form for equal values: members sorted, nothing between them."""

    def serialize(self, value: Any) -> bytes:
        """The value as JSON. Raises ValueError, TypeError for what JSON has not."""
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))
        return text.encode()

    def deserialize(self, data: bytes) -> Any:
        """The value. Raises ValueError."""
        return json.loads(data)
