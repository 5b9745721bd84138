"""Check for keys with the byte 0x7f, which servers store but leave out of their index of subjects."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from kvctl.doctor.finding import ERROR, Finding
from kvctl.errors import KvctlError
from kvctl.jetstream.api import Api
from kvctl.jetstream.consumers import admin
from kvctl.jetstream.consumers.delivery import delivery
from kvctl.jetstream.consumers.ordered.ordered_consumer import read
from kvctl.jetstream.consumers.ordered.server_consumer import Selection
from kvctl.jetstream.stream_info import StreamInfo
from kvctl.kv.names import STREAM_PREFIX, SUBJECT_PREFIX


async def examine(api: Api, infos: Mapping[str, StreamInfo]) -> list[Finding]:
    """Check buckets and aggregates that have more messages than the index counts; only those are read."""
    found = []
    for stream, info in infos.items():
        state, name = info["state"], stream.removeprefix(STREAM_PREFIX)
        if name != stream and not info["config"].get("mirror") and state["messages"] > state.get("num_subjects", 0):
            with suppress(KvctlError):  # deleted in the meantime, or no permission to create a consumer
                if state["messages"] > await admin.count(api, stream, filter_subject=f"{SUBJECT_PREFIX}{name}.>"):
                    found += await _named(api, stream, name)
    return found


async def _named(api: Api, stream: str, name: str) -> list[Finding]:
    """Return the finding with the number of keys and the first of them, by reading the subjects of all messages."""
    keys: dict[bytes, int] = {}
    async for batch in read(api, stream, Selection(subjects=(">",), deliver="all", headers_only=True)):
        keys |= {frame[0]: delivery(frame[1])[0] for frame in batch if b"\x7f" in frame[0]}
    if not keys:
        return []
    subject, revision = min(keys.items(), key=lambda item: item[1])
    key = subject.decode(errors="surrogateescape").removeprefix(f"{SUBJECT_PREFIX}{name}.").replace("\x7f", r"\x7f")
    text = f"{len(keys)} of its keys have the byte 0x7f, the first is `{key}`: servers leave them out of listings"
    fix = f"Read it with `kvctl stream get {stream} {revision}`, and write it under another key"
    return [Finding(ERROR, "unlisted-keys", name, text, fix)]
