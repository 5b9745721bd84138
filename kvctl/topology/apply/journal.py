"""Progress of an apply on disk, so that one that was killed is known to be incomplete.

Nothing depends on it: the remaining work is always derived from the servers. It is kept in the user's state directory,
`$XDG_STATE_HOME/kvctl` or `~/.local/state/kvctl`, one file for a topology and the servers that it is applied to, so
that no checkout is littered; it is removed when everything is done.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from kvctl.dataclass import dataclass
from kvctl.jetstream.api import Api
from kvctl.topology.survey.graph import Where
from kvctl.units import format_time
from kvctl.urls import redact


@dataclass(frozen=True, slots=True)
class Interrupted:
    """An apply that did not complete."""

    begun: str
    """Start time, as RFC 3339."""
    done: int
    total: int
    doing: str | None
    """The write in progress when it ended."""
    filling: tuple[Where, ...]
    """Replicas that it may not have waited for."""


class Journal:
    """One line for each write that begins and ends. Errors in writing it are ignored."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of(cls, name: str, apis: Mapping[str, Api]) -> Journal:
        """Return the journal of a topology of this name on these servers."""
        places = {place: f"{redact(api.connection.context.url)} {api.prefix}" for place, api in apis.items()}
        key = hashlib.sha256(json.dumps(places, sort_keys=True).encode()).hexdigest()[:12]
        return cls(_directory() / f"{name}-{key}.ndjson")

    def interrupted(self) -> Interrupted | None:
        """Return the remains of an earlier apply; None if there are none, or none that can be read."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            head, *lines = [json.loads(line) for line in self.path.read_text().splitlines() if line.endswith("}")]
            done = [line["write"] for line in lines if line["state"] == "done"]
            begun = [line["what"] for line in lines if line["state"] == "begun" and line["write"] not in done]
            filling = [(place, stream) for place, stream in [*head["filling"], *(line["where"] for line in lines)]]
            doing = begun[-1] if begun else None
            return Interrupted(head["begun"], len(done), head["writes"], doing, tuple(dict.fromkeys(filling)))
        return None

    def begin(self, writes: int, filling: Sequence[Where] = ()) -> None:
        """Start over with this number of writes ahead, and the replicas that may still be filling."""
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.path.unlink(missing_ok=True)
        begun = format_time(time.time_ns())
        self._add({"kvctl": "journal", "version": 1, "begun": begun, "writes": writes, "filling": list(filling)})

    def note(self, write: int, state: str, what: str, where: Where) -> None:
        """Record that a write is `begun` or `done`, in words and by its stream."""
        self._add({"write": write, "state": state, "what": what, "where": list(where)})

    def end(self) -> None:
        """Remove the journal when everything is done."""
        with suppress(OSError):
            self.path.unlink(missing_ok=True)

    def _add(self, line: Mapping[str, Any]) -> None:
        with suppress(OSError):
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                os.write(descriptor, json.dumps(line).encode() + b"\n")
            finally:
                os.close(descriptor)


def _directory() -> Path:
    home = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(home) / "kvctl" / "topology"
