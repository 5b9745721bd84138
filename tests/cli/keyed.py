"""A fresh bucket, and kvctl run on it: `keyed("get", "B", "key")`, where `B` stands for its name."""

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tests.cli.conftest import Result, run_process
from tests.support.raw import RawClient


@dataclass(frozen=True)
class Keyed:
    """A bucket that a test has for itself."""

    name: str
    url: str
    raw: RawClient

    def __call__(self, *args: str, env: dict[str, str] | None = None, **settings: Any) -> Result:
        """Run kvctl; in the transcript, too, the bucket is `B`."""
        line = [self.name if arg == "B" else arg for arg in args]
        return run_process(*line, env=self.env(env), **settings).masked(
            {rf"\b{self.name}\b": "B", rf"KV_{self.name}": "KV_B"}
        )

    def env(self, more: dict[str, str] | None = None) -> dict[str, str]:
        """Variables that point a command at the server."""
        return {"NATS_URL": self.url, **(more or {})}

    def put(self, key: str, value: bytes = b"value", headers: dict[str, str] | None = None) -> int:
        """Write a key as another program would; its revision."""
        return self.raw.put(self.name, key, value, headers)

    def store(self, *keys: str, value: bytes = b"") -> None:
        """Store non-conforming keys; the server complains about wildcards in them but stores them."""
        with RawClient(self.url) as other:
            for key in keys:
                other.publish(f"$KV.{self.name}.{key}", value)
            for _ in (*keys, ""):
                with suppress(ConnectionError):
                    other.flush()

    def delete(self, key: str) -> int:
        """Mark a key deleted."""
        return self.put(key, b"", {"KV-Operation": "DEL"})

    def value(self, key: str) -> bytes | None:
        """Return the key's value, or None."""
        reply = self.raw.request(f"$JS.API.DIRECT.GET.KV_{self.name}.$KV.{self.name}.{key}")
        gone = reply.headers.get("Status", "").startswith("404") or "KV-Operation" in reply.headers
        return None if gone else reply.data

    def last_revision(self) -> int:
        """The bucket's last revision."""
        return int(self.raw.api(f"STREAM.INFO.KV_{self.name}")["state"]["last_seq"])

    def consumers(self) -> int:
        """Consumers that readings have at the moment."""
        return int(self.raw.api(f"STREAM.INFO.KV_{self.name}")["state"]["consumer_count"])

    def consumers_left(self) -> int:
        """Consumers that readings have left behind: those that are there still after some seconds."""
        deadline = time.monotonic() + 10
        while (left := self.consumers()) and time.monotonic() < deadline:
            time.sleep(0.02)
        return left
