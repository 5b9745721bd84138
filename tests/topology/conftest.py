"""Replicas created with raw stream configurations, and waits for asynchronous work of servers."""

from collections.abc import Awaitable
from typing import Any

import pytest

from kvctl import Client
from tests.support.raw import RawClient

_COMMON = dict.fromkeys(("allow_direct", "allow_rollup_hdrs", "deny_delete"), True) | {
    "max_msgs_per_subject": 1,
    "discard": "new",
}
"""Settings of all replicas."""


class Replicas:
    """Mirrors and aggregates by raw JSON, as any other tool would create them."""

    def __init__(self, raw: RawClient) -> None:
        self.raw = raw

    def mirror(self, name: str, origin: str, **config: Any) -> dict[str, Any]:
        """Create a mirror of a bucket, or of `mirror` if given."""
        source = {"name": f"KV_{origin}"} | config.pop("mirror", {})
        stream = {"name": name, "mirror": source, "mirror_direct": True, **_COMMON, **config}
        return self._made(name, stream)

    def aggregate(self, name: str, *sources: dict[str, Any], **config: Any) -> dict[str, Any]:
        """Create an aggregate of raw sources, with history 1."""
        stream = {"name": f"KV_{name}", "subjects": [], "sources": list(sources), **_COMMON, **config}
        return self._made(f"KV_{name}", stream)

    def subjects(self, stream: str) -> dict[str, int]:
        """Return the subjects that a stream holds, with their message counts."""
        found: dict[str, int] = self.info(stream, subjects_filter=">")["state"].get("subjects") or {}
        return found

    def info(self, stream: str, **request: Any) -> dict[str, Any]:
        return self.raw.api(f"STREAM.INFO.{stream}", request or None)

    def _made(self, name: str, stream: dict[str, Any]) -> dict[str, Any]:
        answer = self.raw.api(f"STREAM.CREATE.{name}", stream)
        assert "error" not in answer, answer
        return answer


def source(origin: str, target: str, src: str = ">", dest: str = ">", **more: Any) -> dict[str, Any]:
    """Return a source as in an aggregate's configuration, with keys for subjects."""
    rules = [{"src": f"$KV.{origin}.{src}", "dest": f"$KV.{target}.{dest}"}]
    return {"name": f"KV_{origin}", "subject_transforms": rules, **more}


async def refused(attempt: Awaitable[object]) -> str:
    """Return the message and the hint of a HazardRefused."""
    from kvctl.errors import HazardRefused

    with pytest.raises(HazardRefused) as caught:
        await attempt
    assert caught.value.exit_code == 1
    return f"{caught.value.message}\n{caught.value.hint}"


async def keys_of(client: Client, bucket: str) -> list[str]:
    """Return all keys, sorted."""
    return sorted([key async for key in client.bucket(bucket).keys()])


@pytest.fixture
def replicas(raw):
    """Return replicas by raw JSON, on the shared server."""
    return Replicas(raw)
