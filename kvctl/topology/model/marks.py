"""Marks that a repair leaves on the server while it runs, so that an interrupted one is completed. [pure]"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvctl.jetstream.stream_info import StreamConfig
from kvctl.kv.stream_kind import OWN_METADATA
from kvctl.topology.model.subjects import KeyMapping

REPAIR = f"{OWN_METADATA}repair"
"""Metadata of a stand-in: the mirror that it stands in for."""
_STAND_IN = "kvctl-repair-"
_TOKEN = "$KV._kvctl.repair."
"""Unused subject prefix: a rule for one of its subjects distinguishes a source from one without it."""


def stand_in(config: StreamConfig) -> StreamConfig:
    """Return a mirror that holds what a new one of this configuration would, and stores the configuration."""
    name = config["name"]
    return {**config, "name": f"{_STAND_IN}{name}", "metadata": {**(config.get("metadata") or {}), REPAIR: name}}


def original(config: StreamConfig) -> StreamConfig:
    """Return the mirror that a stand-in stands in for."""
    metadata = {key: value for key, value in config["metadata"].items() if key != REPAIR}
    return {**config, "name": config["metadata"][REPAIR], "metadata": metadata}


def is_stand_in(config: StreamConfig) -> bool:
    """Return whether the stream is a stand-in."""
    return REPAIR in (config.get("metadata") or {})


def temporary(source: Mapping[str, Any], token: str, subjects: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return a second source that replicates everything again, or only `subjects` (the origin's, and where they land).

    It begins with the origin's first entry: by default servers let a source that joins an aggregate begin with what is
    newer than the aggregate's last entry, if the aggregate's first one was removed.
    """
    rules = [{"src": src, "dest": dest} for src, dest in (subjects or {}).items()]
    if subjects is None:
        rules = [rule.to_json() for rule in KeyMapping.of(dict(source)).rules]
    kept = {key: value for key, value in source.items() if key in ("name", "external")}
    mark = {"src": f"{_TOKEN}{token}", "dest": f"{_TOKEN}{token}"}
    return {**kept, "opt_start_seq": 1, "subject_transforms": [*rules, mark]}


def is_temporary(source: Mapping[str, Any]) -> bool:
    """Return whether a repair added the source."""
    return any((rule.get("src") or "").startswith(_TOKEN) for rule in source.get("subject_transforms") or ())


def token_of(source: Mapping[str, Any]) -> str:
    """Return the mark in the headers of messages of this temporary source, and of no other."""
    return str(next(rule["src"] for rule in source["subject_transforms"] if rule["src"].startswith(_TOKEN)))
