"""What a consumer delivers: the message as it came off the wire, and what its reply subject says. [pure]"""

RawFrame = tuple[bytes, bytes, bytes, bytes]
"""Subject, reply, header, payload, as they came off the wire."""


def delivery(reply: bytes) -> tuple[int, int, int, int]:
    """Stream sequence, consumer sequence, time in ns, and messages still pending, from a message's reply subject."""
    tokens = reply.split(b".")
    at = 5 if len(tokens) == 9 else 7  # the longer form carries domain and account before the stream
    return int(tokens[at]), int(tokens[at + 1]), int(tokens[at + 2]), int(tokens[at + 3])
