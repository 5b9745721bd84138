"""Rows and views of messages."""

import base64
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kvctl.errors import KvctlError
from kvctl.render.view import Column, Row, View, age_text
from kvctl.units import format_size, format_time

if TYPE_CHECKING:
    from kvctl.jetstream.consumers.message import Message


class Rows:
    """Converter of messages to rows, with data encoded for the output."""

    def __init__(self, encoding: str | None, *, table: bool) -> None:
        self._encoding = encoding
        self._table = table

    def stored(self, message: Any, more: Mapping[str, Any]) -> Row:
        """Return the row of a stored message. Raises KvctlError if the data does not have the encoding."""
        return {
            "stream": message.stream,
            "subject": message.subject,
            "sequence": message.sequence,
            "time": format_time(message.time_ns),
            "headers": headers_of(message.header),
            **self._data(message.payload, message.sequence),
            **more,
        }

    def delivered(self, message: "Message") -> Row:
        """Return the row of a delivered message."""
        metadata = message.metadata
        return {
            "stream": metadata.stream,
            "consumer": metadata.consumer,
            "subject": message.subject,
            "sequence": metadata.sequence,
            "consumer_sequence": metadata.consumer_sequence,
            "delivered": metadata.delivered,
            "pending": metadata.pending,
            "time": format_time(metadata.time_ns),
            "headers": message.headers,
            **self._data(message.data, metadata.sequence),
        }

    def _data(self, data: bytes, sequence: int) -> dict[str, str]:
        if self._encoding != "base64":
            try:
                return {"data": data.decode(), "encoding": "utf-8"}
            except UnicodeDecodeError:
                if self._encoding is not None:
                    raise KvctlError(
                        f"The data of message {sequence} is not UTF-8", hint="Use `--encoding base64`"
                    ) from None
        if self._table and self._encoding is None:
            return {"data": f"({format_size(len(data))} of binary data)", "encoding": "base64"}
        return {"data": base64.b64encode(data).decode(), "encoding": "base64"}


def headers_of(header: bytes) -> dict[str, str]:
    """Return a message's own headers, without those that a direct get adds."""
    from kvctl.wire import decode_headers

    return {name: text for name, text in decode_headers(header).items() if name not in _ADDED}


def stored_view(*, single: bool, **settings: Any) -> View:
    """Build the view of stored messages."""
    columns = [
        Column("stream", table=single),
        Column("subject"),
        Column("sequence", right=not single),
        Column("time", text=age_text if not single else None, title=None if single else "AGE"),
        Column("headers", flex=not single, text=_headers_text),
        Column("data", flex=not single),
        Column("encoding", table=False),
        Column("pending", table=single),
        Column("last_sequence", table=False),
        Column("up_to_sequence", table=False),
    ]
    return View(columns=columns, name="sequence", single=single, **settings)


def delivered_view(*, single: bool, **settings: Any) -> View:
    """Build the view of delivered messages."""
    columns = [
        Column("stream", table=single),
        Column("consumer", table=single),
        Column("subject"),
        Column("sequence", right=not single),
        Column("consumer_sequence", table=single),
        Column("delivered", right=not single),
        Column("pending", right=not single),
        Column("time", text=None if single else age_text, title=None if single else "AGE"),
        Column("headers", flex=not single, text=_headers_text),
        Column("data", flex=not single),
        Column("encoding", table=False),
    ]
    return View(columns=columns, name="sequence", single=single, **settings)


def _headers_text(headers: Mapping[str, str]) -> str:
    return ", ".join(f"{name}: {text}" for name, text in headers.items())


_ADDED = {
    "Nats-Stream", "Nats-Subject", "Nats-Sequence", "Nats-Time-Stamp", "Nats-Num-Pending", "Nats-Last-Sequence",
    "Nats-UpTo-Sequence",
}  # fmt: skip
