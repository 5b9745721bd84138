"""Every revision that a bucket ever had, whatever its history keeps: the model of the pipeline's oracles."""

import base64
from collections.abc import Iterable
from typing import Any, NamedTuple

from tests.support.raw import RawClient


class Revision(NamedTuple):
    """One stored message."""

    number: int
    key: str
    value: bytes | None
    """None for a deletion."""


class Revisions:
    """A bucket that republishes what it stores into a stream that forgets nothing."""

    def __init__(self, raw: RawClient, bucket: str, **config: object) -> None:
        self._raw, self.bucket = raw, bucket
        self._log = f"LOG_{bucket}"
        self._read = 0
        self.all: list[Revision] = []
        raw.create_stream(self._log, subjects=[f"LOG.{bucket}.>"])
        republish = {"src": f"$KV.{bucket}.>", "dest": f"LOG.{bucket}.>"}
        raw.create_bucket(bucket, republish=republish, **config)

    def refresh(self) -> list[Revision]:
        """Everything that was stored until now, in its order."""
        last = int(self.info()["last_seq"])
        while not self.all or self.all[-1].number < last:
            if not last:
                break
            answer = self._raw.api(f"STREAM.MSG.GET.{self._log}", {"seq": self._read + 1})
            if "error" in answer:
                continue  # it is on its way
            self._read += 1
            message = answer["message"]
            headers = base64.b64decode(message.get("hdrs", "")).decode()
            number = int(_header(headers, "Nats-Sequence"))
            value = None if "KV-Operation: " in headers else base64.b64decode(message.get("data", ""))
            self.all.append(Revision(number, message["subject"].removeprefix(f"LOG.{self.bucket}."), value))
        return self.all

    def info(self) -> dict[str, Any]:
        """The state of the bucket's stream."""
        state: dict[str, Any] = self._raw.api(f"STREAM.INFO.KV_{self.bucket}")["state"]
        return state

    def put(self, key: str, value: bytes | None) -> int:
        """Write or, without a value, delete a key as another client does."""
        return self._raw.put(self.bucket, key, value or b"", None if value is not None else {"KV-Operation": "DEL"})


def held(revisions: Iterable[Revision], history: int) -> list[Revision]:
    """Return the revisions that a bucket keeps of these."""
    of_keys: dict[str, list[Revision]] = {}
    for revision in revisions:
        of_keys.setdefault(revision.key, []).append(revision)
    return sorted(revision for kept in of_keys.values() for revision in kept[-history:])


def _header(block: str, name: str) -> str:
    return next(line.partition(": ")[2] for line in block.split("\r\n") if line.startswith(f"{name}: "))
