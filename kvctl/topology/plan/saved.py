"""Saved plans: the topology file, the state that the plan is based on and where it leads, and a checksum.

A saved plan is applied by planning again: it is stale if that leads elsewhere, or begins with another state.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kvctl import atomic_file
from kvctl.documents import parser, variables
from kvctl.documents.parser import Document
from kvctl.errors import ConflictError, UsageError
from kvctl.jetstream import answer
from kvctl.jetstream.api import Api
from kvctl.jetstream.stream_info import StreamConfig, StreamInfo
from kvctl.kv.config import differences
from kvctl.kv.stream_kind import LEAVING
from kvctl.phrases import counted, indented
from kvctl.topology.model.file import Topology, read_topology
from kvctl.topology.plan import planner
from kvctl.topology.plan.change import ABSENT, Action, ResourceChange, TopologyPlan, fingerprint
from kvctl.topology.plan.description import title
from kvctl.topology.survey.graph import Where
from kvctl.urls import redact
from kvctl.wire import MALFORMED

KIND = "plan"
VERSION = 1
_AGAIN = "Create a new plan with `kvctl topology plan`"


@dataclass(frozen=True, slots=True)
class SavedPlan:
    """A plan as the topology file that it was created from, and what it is based on."""

    document: Any
    """The topology file as plain data."""
    source: str
    """Name of that file."""
    addresses: Mapping[str, str] = field(default_factory=dict)
    """Server and API prefix of each of its contexts."""
    prune: bool = False
    forced: tuple[str, ...] = ()
    """Hazards that were accepted when it was created."""
    seen: Mapping[Where, str] = field(default_factory=dict)
    """The fingerprint of each stream that it is based on."""
    ends: Mapping[Where, tuple[Action, StreamConfig | None]] = field(default_factory=dict)
    """Each change, and the configuration to which it leads; None: deleted."""

    @classmethod
    def of(
        cls,
        document: Document,
        plan: TopologyPlan,
        apis: Mapping[str, Api],
        *,
        prune: bool = False,
        forced: Iterable[str] = (),
    ) -> SavedPlan:
        """Return the plan of a file as it is saved."""
        ends = {change.where: (change.action, change.after) for change in plan.changes}
        return cls(document.data, document.source, addresses(apis), prune, tuple(forced), plan.seen, ends)

    def topology(self) -> Topology:
        """Read the topology file. Raises UsageError."""
        return read_topology(Document(self.document, self.source))


async def renewed(saved: SavedPlan, apis: Mapping[str, Api]) -> TopologyPlan:
    """Return the remaining changes of the plan, with current hazards, readers and contents.

    Raises ConflictError, naming all streams that are neither as planned from nor as the plan leaves them.
    """
    now, inventory = await planner.plan_and_inventory(saved.topology(), apis, prune=saved.prune)
    stale: list[str] = []
    for where, seen in saved.seen.items():
        live = inventory.places[where[0]].infos.get(where[1]) if where[0] in inventory.places else None
        if fingerprint(live) != seen and not (where in saved.ends and is_begun(*saved.ends[where], live)):
            stale.append(moved(where, seen, live))
    others = [change for change in now.changes if not _is_planned(saved, change)]
    stale += [f"{title(change)} would change otherwise, as an origin out of view has changed" for change in others]
    _refuse(stale)
    return replace(now, changes=[change for change in now.changes if change.where in saved.ends], unlisted=[])


def require_as_shown(shown: TopologyPlan, now: TopologyPlan) -> None:
    """Raise ConflictError if a change would do more harm than what was confirmed."""
    before = {change.where: change for change in shown.changes}
    _refuse([text for change in now.changes if change.where in before for text in _worse(before[change.where], change)])


def is_begun(action: Action, after: StreamConfig | None, live: StreamInfo | None) -> bool:
    """Return whether a state that was not planned from is one that applying the change leads to."""
    if live is None:
        return action in (Action.DELETE, Action.RECREATE)
    # Until the keys of removed origins are removed, an aggregate keeps its history.
    passing = {f"metadata.{LEAVING}", *(["history"] if is_marked(live) else [])}
    left = [item for item in differences(live["config"], after or {}) if item.field not in passing]
    return after is not None and not left


def is_marked(live: StreamInfo | None) -> bool:
    """Return whether keys are still to be removed from it."""
    return live is not None and LEAVING in (live["config"].get("metadata") or {})


def moved(where: Where, seen: str, live: StreamInfo | None) -> str:
    """Say how a stream differs from the state that was planned from."""
    name = f"`{where[1].removeprefix('KV_')}`" + (f" in `{where[0]}`" if where[0] else "")
    if live is None:
        return f"{name} was deleted"
    if seen == ABSENT:
        return f"{name} was created"
    return f"{name} was {'changed' if seen.startswith(live['created']) else 'recreated'}"


def _refuse(stale: list[str]) -> None:
    if stale:
        raise ConflictError(indented("The plan is stale:", stale), hint=_AGAIN)


def _is_planned(saved: SavedPlan, change: ResourceChange) -> bool:
    """Return whether a change leads where the plan does; new deletions and entries are left out."""
    _, after = saved.ends.get(change.where, (None, change.before))
    return change.after is None or not differences(after or {}, change.after)


def _worse(shown: ResourceChange, now: ResourceChange) -> list[str]:
    texts = [hazard.evidence for hazard in now.hazards if hazard not in shown.hazards]
    texts += [f"`{name}` now replicates from {title(now)}" for name in now.readers if name not in shown.readers]
    if shown.drops is not None and not shown.drops[0] and now.drops is not None and now.drops[0]:
        texts.append(f"{title(now)} was empty and now holds {counted(now.drops[0], 'entry')}")
    return texts


# -- the file ----------------------------------------------------------------------------------------------


def addresses(apis: Mapping[str, Api]) -> dict[str, str]:
    """Return server and API prefix of each context, without secrets."""
    return {name: f"{redact(api.connection.context.url)} {api.prefix}" for name, api in apis.items()}


def save(path: str, saved: SavedPlan) -> None:
    """Write the plan atomically, readable only by its owner: URLs may hold secrets. Raises UsageError."""
    body = {"kvctl": KIND, "version": VERSION, **_to_json(saved)}
    text = json.dumps({**body, "sha256": _checksum(body)}, indent=1) + "\n"
    try:
        atomic_file.replace(Path(path), text.encode())
    except OSError as error:
        raise UsageError(f"Cannot write `{path}`: {error.strerror}") from None


def is_plan(content: bytes) -> bool:
    """Return True if a file begins like a saved plan, not like a topology."""
    return b'"kvctl"' in content.lstrip()[:20]


def load(content: bytes, source: str) -> SavedPlan:
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
    except MALFORMED:
        raise UsageError(f"`{source}` is damaged: fields are missing or wrong", hint="Create a new plan") from None


def _checksum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _to_json(saved: SavedPlan) -> dict[str, Any]:
    return {
        "source": saved.source,
        "document": saved.document,
        "variables": [[list(path), text.source] for path, text in variables.texts(saved.document)],
        "addresses": dict(saved.addresses),
        "prune": saved.prune,
        "forced": list(saved.forced),
        "seen": [{"place": where[0], "stream": where[1], "fingerprint": text} for where, text in saved.seen.items()],
        "changes": [
            {"place": where[0], "stream": where[1], "action": action, "after": after}
            for where, (action, after) in saved.ends.items()
        ],
    }


def _from_json(found: Mapping[str, Any]) -> SavedPlan:
    for change in found["changes"]:
        if change["after"] is not None:
            answer.check_config(change["after"])
    for text in (*found["forced"], *(item[name] for item in found["seen"] for name in item)):
        text.encode()
    for path, source in found.get("variables", ()):
        variables.mark(found["document"], tuple(path), source)
    return SavedPlan(
        found["document"],
        found["source"],
        found["addresses"],
        found["prune"],
        tuple(found["forced"]),
        {(item["place"], item["stream"]): item["fingerprint"] for item in found["seen"]},
        {(item["place"], item["stream"]): (Action(item["action"]), item["after"]) for item in found["changes"]},
    )
