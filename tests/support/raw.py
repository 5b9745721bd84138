"""A NATS client of a page, on a blocking socket: lets a test act on a server without the code under test."""

import json
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Self
from urllib.parse import urlsplit


@dataclass
class Reply:
    """One message: its subject, headers (the status line under `Status`) and payload."""

    subject: str
    data: bytes
    headers: dict[str, str] = field(default_factory=dict)

    def json(self) -> Any:
        return json.loads(self.data)


_TRUE = dict.fromkeys("deny_delete allow_rollup_hdrs allow_direct".split(), True)
_UNLIMITED = dict.fromkeys("max_msgs max_bytes max_msg_size max_consumers".split(), -1)


class RawClient:
    """Publishes, requests, JetStream API calls; TimeoutError when nothing comes, ConnectionError on -ERR."""

    def __init__(self, url: str, *, user: str | None = None, password: str | None = None, timeout: float = 5) -> None:
        parts = urlsplit(url)
        self._socket = socket.create_connection((parts.hostname, parts.port), timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else 40 ms for each request
        self._lines = self._socket.makefile("rb")
        self._inboxes = count(1)
        self.info: dict[str, Any] = json.loads(self._lines.readline().removeprefix(b"INFO "))
        options: dict[str, object] = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True}
        if user or parts.username:
            options |= {"user": user or parts.username, "pass": password or parts.password}
        self._send(b"CONNECT %b\r\n" % json.dumps(options).encode())
        self.flush()

    def publish(
        self, subject: str, data: bytes = b"", headers: dict[str, str] | None = None, *, reply: str = ""
    ) -> None:
        """Send; nobody needs to listen."""
        address = f"{subject} {reply}".strip().encode(errors="surrogateescape")
        if headers is None:
            self._send(b"PUB %b %d\r\n%b\r\n" % (address, len(data), data))
            return
        head = "NATS/1.0\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers.items()) + "\r\n"
        block = head.encode(errors="surrogateescape")
        whole = block + data
        self._send(b"HPUB %b %d %d\r\n%b\r\n" % (address, len(block), len(whole), whole))

    def request(self, subject: str, data: bytes = b"", headers: dict[str, str] | None = None) -> Reply:
        """The first answer; a status without responders is a reply with `Status` 503."""
        number = next(self._inboxes)
        inbox = f"_INBOX.raw{id(self)}.{number}"
        self._send(b"SUB %b %d\r\nUNSUB %d 1\r\n" % (inbox.encode(), number, number))
        self.publish(subject, data, headers, reply=inbox)
        return self._next()

    def api(self, subject: str, body: object = None, *, prefix: str = "$JS.API") -> dict[str, Any]:
        """A JetStream API request; its answer, an error included."""
        data = b"" if body is None else json.dumps(body).encode()
        answer: dict[str, Any] = self.request(f"{prefix}.{subject}", data).json()
        return answer

    def put(self, bucket: str, key: str, value: bytes, headers: dict[str, str] | None = None) -> int:
        """Write a key as any client would; its revision."""
        return int(self.request(f"$KV.{bucket}.{key}", value, headers).json()["seq"])

    def state(self, bucket: str) -> dict[str, Any]:
        """The state of a bucket's stream."""
        found: dict[str, Any] = self.api(f"STREAM.INFO.KV_{bucket}")["state"]
        return found

    def create_bucket(
        self, bucket: str, entries: Mapping[str, bytes] | None = None, **config: object
    ) -> dict[str, Any]:
        """A bucket with ADR-8's stream configuration, and what else is asked for; with these entries."""
        stream: dict[str, Any] = {"name": f"KV_{bucket}", "subjects": [f"$KV.{bucket}.>"], "discard": "new"}
        stream |= {"max_msgs_per_subject": 1, "num_replicas": 1, "duplicate_window": 120_000_000_000}
        stream |= {"storage": "file", "retention": "limits", **_TRUE, **_UNLIMITED, **config}
        answer = self.create_stream(**stream)
        for key, value in (entries or {}).items():
            self.put(bucket, key, value)
        return answer

    def create_stream(self, name: str, **config: object) -> dict[str, Any]:
        """A stream with this configuration."""
        answer = self.api(f"STREAM.CREATE.{name}", {"name": name, **config})
        assert "error" not in answer, answer
        return answer

    def flush(self) -> None:
        """Wait until the server has seen everything sent."""
        self._send(b"PING\r\n")
        while not (line := self._line()).startswith(b"PONG"):
            if line.startswith((b"MSG", b"HMSG")):
                self._message(line)

    def close(self) -> None:
        self._lines.close()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _next(self) -> Reply:
        while not (line := self._line()).startswith((b"MSG", b"HMSG")):
            pass
        return self._message(line)

    def _line(self) -> bytes:
        line = self._lines.readline()
        if line.startswith(b"PING"):
            self._send(b"PONG\r\n")
        if line.startswith(b"-ERR") or not line:
            raise ConnectionError(line.decode().strip() or "the server closed the connection")
        return line

    def _message(self, line: bytes) -> Reply:
        parts = line.decode().split()
        payload = self._lines.read(int(parts[-1]) + 2)[:-2]
        if parts[0] == "MSG":
            return Reply(parts[1], payload)
        size = int(parts[-2])
        return Reply(parts[1], payload[size:], _headers(payload[:size]))

    def _send(self, data: bytes) -> None:
        self._socket.sendall(data)


def putting(url: str, bucket: str, key: str, value: bytes, **headers: str) -> Callable[[], object]:
    """What another client does at some moment: write a key."""

    def put() -> None:
        with RawClient(url) as raw:
            raw.put(bucket, key, value, {name.replace("_", "-"): text for name, text in headers.items()} or None)

    return put


def _headers(block: bytes) -> dict[str, str]:
    first, *lines = block.decode("utf-8", "surrogateescape").split("\r\n")
    headers = {"Status": first.removeprefix("NATS/1.0").strip()} if first != "NATS/1.0" else {}
    pairs = (line.partition(":") for line in lines if line)
    return headers | {name: value.strip() for name, _, value in pairs}
