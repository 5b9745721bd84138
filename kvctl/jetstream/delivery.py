"""What a consumer delivers: the message as it came off the wire, and what its reply subject says. [pure]"""

RawFrame = tuple[bytes, bytes, bytes, bytes]
"""Subject, reply, header, payload, as they came off the wire."""


def delivery(reply: bytes) -> tuple[int, int, int, int]:
    """Stream sequence, consumer sequence, time in ns, and messages still pending, from a message's reply subject."""
    # The longer form carries domain and account before the stream, and a random token at the end.
    tokens = reply.rsplit(b".", 4) if reply.count(b".") == 8 else reply.split(b".")[6:]
    return int(tokens[1]), int(tokens[2]), int(tokens[3]), int(tokens[4])
