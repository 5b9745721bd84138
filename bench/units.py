"""The machine's own units: a loop of pure Python, and a round trip to the server, both always the same."""

from __future__ import annotations

import socket
import time
from urllib.parse import urlsplit

LOOP = 1_000_000
TRIPS = 1000


def loop() -> float:
    """Return the processor seconds of a fixed loop of the interpreter."""
    begun = time.process_time()
    words: dict[int, int] = {}
    total = 0
    for number in range(LOOP):
        total = (total * 31 + number) % 65_537
        words[total & 1023] = number
    return time.process_time() - begun


def trip(url: str) -> float:
    """Return the wall seconds of one request to JetStream over a blocking socket, the mean of a thousand."""
    address = urlsplit(url)
    with socket.create_connection((address.hostname or "127.0.0.1", address.port or 4222), timeout=10) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _until(connection, b"\r\n")
        connection.sendall(b'CONNECT {"verbose":false,"pedantic":false,"headers":true}\r\nSUB unit 1\r\nPING\r\n')
        _until(connection, b"PONG\r\n")
        begun = time.perf_counter()
        for _ in range(TRIPS):
            connection.sendall(b"PUB $JS.API.STREAM.NAMES unit 0\r\n\r\n")
            _until(connection, b"}\r\n")
        return (time.perf_counter() - begun) / TRIPS


def _until(connection: socket.socket, end: bytes) -> None:
    received = b""
    while not received.endswith(end):
        chunk = connection.recv(65536)
        if not chunk:
            raise RuntimeError("the server closed the connection")
        received += chunk
