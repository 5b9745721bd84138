"""What a message's headers say of its key, as ADR-8 and ADR-48 have it."""

import pytest

from kvctl import Operation
from kvctl.kv.entry import operation_of


@pytest.mark.parametrize(
    ("header", "operation", "reason"),
    [
        ("", Operation.PUT, None),
        ("Nats-TTL: 5", Operation.PUT, None),
        ("KV-Operation: DEL", Operation.DEL, None),
        ("KV-Operation: PURGE", Operation.PURGE, None),
        ("KV-Operation: MOVED", Operation.DEL, "MOVED"),
        ("KV-Operation: PUT", Operation.DEL, "PUT"),
        ("Nats-Marker-Reason: MaxAge", Operation.PURGE, "MaxAge"),
        ("Nats-Marker-Reason: Purge", Operation.PURGE, "Purge"),
        ("Nats-Marker-Reason: Remove", Operation.DEL, "Remove"),
        ("Nats-Marker-Reason: Other", Operation.DEL, "Other"),
        ("KV-Operation: DEL\r\nNats-Marker-Reason: MaxAge", Operation.DEL, None),
    ],
)
def test_operation_and_reason_of_a_message(header, operation, reason):
    block = f"NATS/1.0\r\n{header}\r\n\r\n".encode() if header else b""
    assert operation_of(block) == (operation, reason)
