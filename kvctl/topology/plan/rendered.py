"""Stream configurations of a topology file, as `apply` creates them on empty servers. [pure]"""

from __future__ import annotations

from dataclasses import dataclass

from kvctl.jetstream.stream_info import StreamConfig
from kvctl.phrases import counted
from kvctl.topology.model.file import Topology
from kvctl.topology.plan.desired import DesiredState, Draft
from kvctl.topology.plan.origin_place import unseen


@dataclass(frozen=True, slots=True)
class Rendered:
    """Configurations, each origin before its readers."""

    streams: list[StreamConfig]
    warnings: list[str]
    """Notes on settings that depend on the servers, and on what configurations do not contain."""
    places: list[str]
    """Context of each stream, in the same order."""


def render(topology: Topology) -> Rendered:
    """Return every stream of the file as a plan would create it, without reading any server."""
    drafts = DesiredState(topology, unseen(topology)).all()
    return Rendered(
        [draft.after for draft in drafts],
        [*(text for draft in drafts for text in _unknown(topology, draft)), *_entries(topology)],
        [draft.place for draft in drafts],
    )


def _entries(topology: Topology) -> list[str]:
    return [
        f"Configurations do not contain entries: `topology apply` creates {counted(len(entries), 'entry')} in `{name}`"
        for name, entries in topology.entries.items()
    ]


def _unknown(topology: Topology, draft: Draft) -> list[str]:
    inherited = [name for name in ("history", "ttl") if name not in topology.named.get(draft.name, ())]
    what = " and ".join(inherited)
    return [
        f"`{item.origin.name}` is not in the file, so the {what} that `{draft.name}` inherits from it is unknown here"
        for item in draft.origins
        if inherited and item.where is None
    ]
