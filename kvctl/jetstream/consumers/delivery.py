"""What a consumer delivers: the message as it came off the wire, and what its reply subject says. [pure]"""

from typing import NamedTuple

RawFrame = tuple[bytes, bytes, bytes, bytes]
"""Subject, reply, header, payload, as they came off the wire."""


class Metadata(NamedTuple):
    """Where a delivered message comes from and what is left behind it; `time_ns` since the epoch."""

    stream: str
    consumer: str
    delivered: int
    """How often it was delivered, this time included."""
    sequence: int
    consumer_sequence: int
    time_ns: int
    pending: int


def delivery(reply: bytes) -> tuple[int, int, int, int]:
    """Stream sequence, consumer sequence, time in ns, and messages still pending, from a message's reply subject."""
    # The longer form carries domain and account before the stream, and a random token at the end.
    tokens = reply.rsplit(b".", 4) if reply.count(b".") == 8 else reply.split(b".")[6:]
    return int(tokens[1]), int(tokens[2]), int(tokens[3]), int(tokens[4])


def metadata(reply: bytes) -> Metadata:
    """Everything that a message's reply subject says."""
    tokens = reply.decode(errors="surrogateescape").split(".")
    stream, consumer, *numbers = tokens[2:9] if len(tokens) == 9 else tokens[4:11]
    return Metadata(stream, consumer, *map(int, numbers))
