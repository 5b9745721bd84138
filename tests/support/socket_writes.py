"""What a connection writes to its socket, piece by piece."""

import pytest

from kvctl.connection.live_connection import Connection


def recorded_writes(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Return a list of the pieces that the connection writes from now on; they are sent, too."""
    writes: list[bytes] = []
    send = connection._client.send
    monkeypatch.setattr(connection._client, "send", lambda data: [writes.append(data), send(data)])
    return writes
