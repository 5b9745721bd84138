"""Streams of tables and repositories, and refusal of bucket commands on them. [pure]

They carry a mark in their metadata. They are not named `KV_...` and have no subject below `$KV.`, so that no write of a
key can reach them and none has to be checked.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from kvctl.deferred import pattern
from kvctl.errors import HazardRefused
from kvctl.kv.stream_kind import KIND

if TYPE_CHECKING:
    from kvctl.jetstream.stream_info import StreamConfig

FOREIGN_KIND = "foreign-kind"
COMMANDS = {"table": "kvctl table", "repository": "kvctl repo"}
"""Owner of the streams -> its commands."""
NAMES = pattern(r"KV[A-Z]+_")
"""Beginning of the names of their streams."""
WHOLE = "KVR_"
"""Beginning of the names of repository streams: each is complete by itself, and so is a mirror of it."""


def owner(stream: StreamConfig) -> str | None:
    """Return the owner of the stream: `table` or `repository`; None for a bucket's."""
    return (stream.get("metadata") or {}).get(KIND) or None


def evidence(stream: StreamConfig) -> str | None:
    """Return the reason why bucket commands cannot be used on the stream; None for a bucket's."""
    of = owner(stream)
    return f"`{stream['name']}` belongs to a {of}, which would break" if of else None


def remedy(stream: StreamConfig) -> str:
    """Return a hint with the owner's commands."""
    command = COMMANDS.get(owner(stream) or "")
    return f"Use `{command}` instead" if command else ""


def namesake(streams: Iterable[str], name: str) -> str | None:
    """Return the stream that may be a table or a repository of this name."""
    return next((stream for stream in streams if re.fullmatch(rf"KV[A-Z]_{re.escape(name)}", stream)), None)


def refuse(stream: StreamConfig, forced: Collection[str] = (), *, forcible: bool = True) -> None:
    """Raise HazardRefused for the stream of a table or repository, unless `foreign-kind` is forced."""
    text = evidence(stream)
    if text is None or FOREIGN_KIND in forced:
        return
    way = f"Use `--force {FOREIGN_KIND}` to proceed anyway" if forcible else ""
    raise HazardRefused(FOREIGN_KIND, text, hint=". ".join(filter(None, (remedy(stream), way))) or None)
