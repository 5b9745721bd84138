"""Streams of tables and repositories: what a bucket command would break is refused. [pure]

They bear a mark in their metadata. Their streams are not named `KV_...` and listen on no subject below `$KV.`, so that
no write of a key can reach them, whoever sends it, and none has to be checked.
"""

from __future__ import annotations

from collections.abc import Collection

from kvctl.errors import HazardRefused
from kvctl.kv.kinds import KIND, StreamConfig

FOREIGN_KIND = "foreign-kind"
COMMANDS = {"table": "kvctl table", "repository": "kvctl repo"}
"""Whose streams they are -> the commands for them."""


def evidence(stream: StreamConfig) -> str | None:
    """Why bucket commands are not for the stream; None for a bucket's."""
    owner = (stream.get("metadata") or {}).get(KIND)
    return f"`{stream['name']}` belongs to a {owner}, which would break" if owner else None


def remedy(stream: StreamConfig) -> str:
    """The commands that are for it."""
    owner = (stream.get("metadata") or {}).get(KIND, "")
    return f"`{COMMANDS[owner]}` is for it" if owner in COMMANDS else ""


def refuse(stream: StreamConfig, forced: Collection[str] = (), *, forcible: bool = True) -> None:
    """Raises HazardRefused for the stream of a table or a repository, unless `foreign-kind` is forced."""
    text = evidence(stream)
    if text is None or FOREIGN_KIND in forced:
        return
    way = f"`--force {FOREIGN_KIND}` does it all the same" if forcible else ""
    raise HazardRefused(FOREIGN_KIND, text, hint=". ".join(filter(None, (remedy(stream), way))) or None)
