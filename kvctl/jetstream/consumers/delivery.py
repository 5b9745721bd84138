"""Delivered messages in wire form, and the metadata in their reply subjects. [pure]"""

from collections.abc import Sequence
from typing import NamedTuple

from kvctl.wire import RawFrame


class Metadata(NamedTuple):
    """Metadata of a delivered message: its stream, consumer, sequences and pending count; `time_ns` since the epoch."""

    stream: str
    consumer: str
    delivered: int
    """Number of deliveries, including this one."""
    sequence: int
    consumer_sequence: int
    time_ns: int
    pending: int


def delivery(reply: bytes) -> tuple[int, int, int, int]:
    """Parse stream sequence, consumer sequence, time in ns, and pending messages from a message's reply subject."""
    # The longer form has domain and account before the stream, and a random token at the end.
    tokens = reply.rsplit(b".", 4) if reply.count(b".") == 8 else reply.split(b".")[6:]
    return int(tokens[1]), int(tokens[2]), int(tokens[3]), int(tokens[4])


def sequence_token(reply: bytes) -> int:
    """Return the position of the stream sequence among the tokens of a message's reply subject."""
    return 5 if reply.count(b".") == 8 else 7  # after domain and account


def all_short(frames: Sequence[RawFrame]) -> bool:
    """Return True if all reply subjects have the short form, in which the last four tokens are those of `delivery`."""
    return b"".join([frame[1] for frame in frames]).count(b".") == 8 * len(frames)  # no form has fewer dots


def metadata(reply: bytes) -> Metadata:
    """Parse all metadata of a message's reply subject."""
    tokens = reply.decode(errors="surrogateescape").split(".")
    stream, consumer, *numbers = tokens[2:9] if len(tokens) == 9 else tokens[4:11]
    return Metadata(stream, consumer, *map(int, numbers))
