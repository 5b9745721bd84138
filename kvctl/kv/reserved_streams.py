"""Streams of tables and repositories: what a bucket command would break is refused. [pure]

They bear a mark in their metadata. Their streams are not named `KV_...` and listen on no subject below `$KV.`, so that
no write of a key can reach them, whoever sends it, and none has to be checked.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from kvctl.errors import HazardRefused
from kvctl.jetstream.stream_info import StreamConfig
from kvctl.kv.stream_kind import KIND

FOREIGN_KIND = "foreign-kind"
COMMANDS = {"table": "kvctl table", "repository": "kvctl repo"}
"""Whose streams they are -> the commands for them."""
NAMES = re.compile(r"KV[A-Z]+_")
"""What names of their streams begin with."""
WHOLE = "KVR_"
"""What names of streams begin with that are all there is of their thing: a mirror of one holds all of it."""


def owner(stream: StreamConfig) -> str | None:
    """Whose stream it is: `table`, `repository`; None for a bucket's."""
    return (stream.get("metadata") or {}).get(KIND) or None


def evidence(stream: StreamConfig) -> str | None:
    """Why bucket commands are not for the stream; None for a bucket's."""
    of = owner(stream)
    return f"`{stream['name']}` belongs to a {of}, which would break" if of else None


def remedy(stream: StreamConfig) -> str:
    """The commands that are for it."""
    command = COMMANDS.get(owner(stream) or "")
    return f"`{command}` is for it" if command else ""


def namesake(streams: Iterable[str], name: str) -> str | None:
    """The stream that may be a table or a repository of this name."""
    return next((stream for stream in streams if re.fullmatch(rf"KV[A-Z]_{re.escape(name)}", stream)), None)


def refuse(stream: StreamConfig, forced: Collection[str] = (), *, forcible: bool = True) -> None:
    """Raises HazardRefused for the stream of a table or a repository, unless `foreign-kind` is forced."""
    text = evidence(stream)
    if text is None or FOREIGN_KIND in forced:
        return
    way = f"`--force {FOREIGN_KIND}` does it all the same" if forcible else ""
    raise HazardRefused(FOREIGN_KIND, text, hint=". ".join(filter(None, (remedy(stream), way))) or None)
