"""Saved plans: the changes, the state that they are based on, and a checksum."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvctl import atomic_file
from kvctl.documents import parser, variables
from kvctl.documents.parser import Document
from kvctl.errors import UsageError
from kvctl.jetstream.api import Api
from kvctl.jetstream.config_diff import Difference
from kvctl.kv.stream_kind import Kind
from kvctl.topology.hazards.hazards import Hazard
from kvctl.topology.model.file import Topology, read_topology
from kvctl.topology.plan.plan import Action, Change, Plan
from kvctl.urls import redact

KIND = "plan"
VERSION = 1


@dataclass(frozen=True, slots=True)
class Saved:
    """A plan with the topology file that it was created from."""

    document: Any
    """The topology file as plain data."""
    source: str
    """Name of that file."""
    plan: Plan
    addresses: Mapping[str, str] = field(default_factory=dict)
    """Server and API prefix of each of its contexts."""
    prune: bool = False
    forced: tuple[str, ...] = ()
    """Hazards that were accepted when it was created."""

    def topology(self) -> Topology:
        """Read the topology file. Raises UsageError."""
        return read_topology(Document(self.document, self.source))


def addresses(apis: Mapping[str, Api]) -> dict[str, str]:
    """Return server and API prefix of each context, without secrets."""
    return {name: f"{redact(api.connection.context.url)} {api.prefix}" for name, api in apis.items()}


def save(path: str, saved: Saved) -> None:
    """Write the plan atomically, readable only by its owner: URLs may hold secrets. Raises UsageError."""
    body = {"kvctl": KIND, "version": VERSION, **_to_json(saved)}
    text = json.dumps({**body, "sha256": _checksum(body)}, indent=1) + "\n"
    try:
        atomic_file.replace(Path(path), text.encode())
    except OSError as error:
        raise UsageError(f"Cannot write `{path}`: {error.strerror}") from None


def load(content: bytes, source: str) -> Saved:
    """Read a plan. Raises UsageError if it is not a plan, is damaged, or comes from a newer kvctl."""
    hint = "Save a plan with `kvctl topology plan -f FILE --out PLAN`, or apply a topology file with `-f FILE`"
    found = parser.parse(content, source).data
    if not isinstance(found, dict) or found.get("kvctl") != KIND:
        raise UsageError(f"`{source}` is not a saved plan", hint=hint)
    if found.get("version") != VERSION:
        raise UsageError(
            f"`{source}` is a plan of version `{found.get('version')}`, but this kvctl reads version {VERSION}",
            hint="Apply it with the version of kvctl that created it, or create a new plan",
        )
    checksum = found.pop("sha256", None)
    if checksum != _checksum(found):
        raise UsageError(f"`{source}` is damaged: its checksum does not match", hint="Create a new plan")
    try:
        return _from_json(found)
    except (LookupError, TypeError, ValueError):
        raise UsageError(f"`{source}` is damaged: fields are missing", hint="Create a new plan") from None


def _checksum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _to_json(saved: Saved) -> dict[str, Any]:
    return {
        "source": saved.source,
        "document": saved.document,
        "variables": [[list(path), text.source] for path, text in variables.texts(saved.document)],
        "addresses": dict(saved.addresses),
        "prune": saved.prune,
        "forced": list(saved.forced),
        "changes": [_change_to_json(change) for change in saved.plan.changes],
        "warnings": saved.plan.warnings,
        "seen": [
            {"place": place, "stream": stream, "fingerprint": text} for (place, stream), text in saved.plan.seen.items()
        ],
    }


def _change_to_json(change: Change) -> dict[str, Any]:
    live = change.live
    return {
        "action": change.action,
        "kind": change.kind,
        "name": change.name,
        "place": change.place,
        "stream": change.stream,
        "live": {name: live[name] for name in ("config", "created", "state")} if live else None,
        "after": change.after,
        "differences": [[item.field, item.before, item.after] for item in change.differences],
        "origins": [list(where) for where in change.origins],
        "reads": [list(where) for where in change.reads],
        "leaving": list(change.leaving),
        "entries": list(change.entries),
        "readers": list(change.readers),
        "hazards": [[item.name, item.evidence, item.remedy] for item in change.hazards],
        "follows": change.follows,
        "cascades": change.cascades,
    }


def _from_json(found: Mapping[str, Any]) -> Saved:
    seen = {(item["place"], item["stream"]): item["fingerprint"] for item in found["seen"]}
    plan = Plan([_change_from_json(item) for item in found["changes"]], list(found["warnings"]), [], seen)
    forced = tuple(found["forced"])
    for path, source in found.get("variables", ()):
        variables.mark(found["document"], tuple(path), source)
    return Saved(found["document"], found["source"], plan, found["addresses"], prune=found["prune"], forced=forced)


def _change_from_json(found: Mapping[str, Any]) -> Change:
    return Change(
        action=Action(found["action"]),
        kind=Kind(found["kind"]),
        name=found["name"],
        place=found["place"],
        stream=found["stream"],
        live=found["live"],
        after=found["after"],
        differences=[Difference(*item) for item in found["differences"]],
        origins=[(place, stream) for place, stream in found["origins"]],
        reads=[(place, stream) for place, stream in found["reads"]],
        leaving=found["leaving"],
        entries=found.get("entries", ()),
        readers=found["readers"],
        hazards=[Hazard(*item) for item in found["hazards"]],
        follows=found["follows"],
        cascades=found["cascades"],
    )
