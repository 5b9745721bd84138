"""Ephemeral pull consumer of an ordered reading, and the selection of messages that it delivers."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from kvctl.errors import KvctlError, NoResponders, PermissionDenied
from kvctl.jetstream.api import Api
from kvctl.jetstream.consumers.pull import Puller

INACTIVE_S = 30.0
"""Seconds after which the server removes a consumer whose client died."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Selection of a stream's messages: subjects, start, with or without payloads."""

    subjects: tuple[str, ...]
    deliver: str = "last_per_subject"
    """`last_per_subject`, `all`, `new` or `by_start_sequence`."""
    start: int = 0
    headers_only: bool = False


class ServerConsumer:
    """One consumer on the server; a reading that is interrupted continues with another one."""

    def __init__(self, api: Api, stream: str) -> None:
        self.name = f"kvctl-{os.urandom(6).hex()}"
        self.puller = Puller(api.connection, f"{api.prefix}.CONSUMER.MSG.NEXT.{stream}.{self.name}")
        self.epoch = api.connection.epoch
        """Connection epoch in which it was created."""
        self.due: int | None = None
        """Number of messages that it is to deliver, by the server's count."""
        self.server: str | None = None
        """Server that it runs on, None outside clusters."""
        self.next = 1
        """Number of the next message, in the order of delivery."""
        self.end: int | None = None
        """Sequence after which the server had nothing more to send, if reported."""
        self.lost = False
        self.missing = False
        """True if the server reports messages as sent that did not arrive."""
        self._api = api
        self._stream = stream

    async def create(self, selection: Selection, last: int, *, resumed: bool) -> dict[str, Any]:
        """Create it, after the sequence `last` if `resumed`; return the server's answer."""
        policy = "by_start_sequence" if resumed else selection.deliver
        config: dict[str, Any] = {
            "name": self.name,
            "deliver_policy": policy,
            "ack_policy": "none",
            "max_deliver": 1,
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": int(INACTIVE_S * 1e9),
            "headers_only": selection.headers_only,
        }
        if policy == "by_start_sequence":
            config["opt_start_seq"] = last + 1
        endpoint = f"CONSUMER.CREATE.{self._stream}.{self.name}"
        if len(selection.subjects) == 1:
            config["filter_subject"] = selection.subjects[0]
            endpoint += f".{selection.subjects[0]}"
        else:
            config["filter_subjects"] = list(selection.subjects)
        made = await self._api.call(endpoint, {"stream_name": self._stream, "config": config}, retry=True)
        self.server = made.get("cluster", {}).get("leader")
        self.due = made.get("num_pending")
        if self.due == 0:
            self.end = last
        return made

    async def delete(self) -> bool:
        """Delete it, if the server answers within a second; return False if nobody may."""
        try:
            if self._api.connection.online:
                await self._api.call(f"CONSUMER.DELETE.{self._stream}.{self.name}", timeout=1)
        except (PermissionDenied, NoResponders):
            return False
        except KvctlError:
            pass
        return True

    async def note_missing(self) -> None:
        """Note whether the server reports messages as sent that did not arrive, if it answers within a second."""
        with suppress(KvctlError):
            self.missing = self._on_its_way(await self._info(timeout=1))

    async def has_more(self) -> bool:
        """Return True if the server has, or has sent, messages that did not arrive."""
        info = await self._info(retry=True)
        return bool(info["num_pending"]) or self._on_its_way(info)

    async def _info(self, **options: Any) -> dict[str, Any]:
        return await self._api.call(f"CONSUMER.INFO.{self._stream}.{self.name}", **options)

    def _on_its_way(self, info: dict[str, Any]) -> bool:
        return int(info["delivered"]["consumer_seq"]) >= self.next
