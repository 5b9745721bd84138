"""Check of JetStream imported from another account: whether all answers to a request arrive."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing, suppress

from kvctl.doctor.finding import WARNING, Finding
from kvctl.errors import KvctlError
from kvctl.jetstream import single_reply
from kvctl.jetstream.api import Api
from kvctl.jetstream.direct.direct_get import DirectRequest
from kvctl.jetstream.direct.multi_get import pages
from kvctl.jetstream.stream_info import StreamInfo


async def examine(api: Api, infos: Mapping[str, StreamInfo]) -> list[Finding]:
    """Request one message from one stream, which takes two answers: the message, and the end."""
    if api.prefix.startswith("$JS."):
        return []
    for stream, info in infos.items():
        if info["state"]["messages"] and info["config"].get("allow_direct"):
            request = DirectRequest(sequence=info["state"]["first_seq"], batch=1)
            with suppress(KvctlError):  # other errors are reported elsewhere
                async with aclosing(pages(api, stream, request)) as answers:
                    await anext(answers)
            break
    if not single_reply.known(api):
        return []
    text = f"Requests to `{api.prefix}` get only one answer: listings, watches and `consume` request each message"
    return [Finding(WARNING, "single-answers", "account", text, single_reply.HINT)]
