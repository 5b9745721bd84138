"""Rows and views of messages."""

from collections.abc import Mapping
from typing import Any

import kvctl
from kvctl import wire
from kvctl.cli.records import DELIVERED_MESSAGE, STORED_MESSAGE
from kvctl.errors import KvctlError
from kvctl.render.escapes import text_of
from kvctl.render.fields import columns
from kvctl.render.view import Column, Row, View, age_text
from kvctl.units import format_size, format_time


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

    def delivered(self, message: "kvctl.Message") -> Row:
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
        try:
            text, encoding = text_of(data, self._encoding)
        except KvctlError as error:
            raise KvctlError(f"The data of message {sequence} is not UTF-8", hint=error.hint) from None
        if self._table and encoding == "base64" and self._encoding is None:
            text = f"({format_size(len(data))} of binary data)"
        return {"data": text, "encoding": encoding}


def headers_of(header: bytes) -> dict[str, str]:
    """Return a message's own headers, without those that a direct get adds."""
    return {name: text for name, text in wire.decode_headers(header).items() if name not in _ADDED}


def stored_view(*, single: bool, **settings: Any) -> View:
    """Build the view of stored messages."""
    names = "stream subject sequence time headers data pending" if single else "subject sequence time headers data"
    shown = columns(names, time=_time(single))
    return View(columns=shown, tsv=STORED_MESSAGE.columns, name="sequence", single=single, **settings)


def delivered_view(*, single: bool, **settings: Any) -> View:
    """Build the view of delivered messages."""
    names = "subject sequence delivered pending time headers data"
    if single:
        names = "stream consumer subject sequence consumer_sequence delivered pending time headers data"
    shown = columns(names, time=_time(single))
    return View(columns=shown, tsv=DELIVERED_MESSAGE.columns, name="sequence", single=single, **settings)


def _time(single: bool) -> Column:
    return Column("time") if single else Column("time", "Age", text=age_text)


_ADDED = {
    f"Nats-{name}"
    for name in ("Stream", "Subject", "Sequence", "Time-Stamp", "Num-Pending", "Last-Sequence", "UpTo-Sequence")
}
