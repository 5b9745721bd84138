"""Errors that name every entry in the way, though servers name none. [pure]"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kvctl.errors import BadKeyVersion, ConditionalUpdateError, NoSuchKey, OutcomeUnknown
from kvctl.tables.changes import NO_VERSION, NOT_EXISTS, Change, named
from kvctl.tables.entry import Entry


def refusal(changes: Iterable[tuple[str, Change]], found: Mapping[str, Entry | None]) -> ConditionalUpdateError:
    """The error for changes, each with its place, whose conditions do not hold for what was found there.

    Places that are missing in `found` are not looked at.
    """
    failed: list[tuple[str | None, bytes, str | None]] = []
    lines: list[str] = []
    for place, change in changes:
        if place in found and (problem := _problem(change, there := found[place])):
            failed.append((change.family, change.key, str(there.version) if there else None))
            lines.append(f"{named(change.family, change.key)} {problem}")
    kind = BadKeyVersion if any(version for *_, version in failed) or not failed else NoSuchKey
    message = "\n".join(lines) or "An entry was changed meanwhile, and back"
    return kind(message, failed=tuple(failed), hint="Nothing was written; `kvctl table get -o json` shows versions")


def unknown(table: str, family: str | None, key: bytes) -> OutcomeUnknown:
    """The error for a write whose acknowledgement was lost, and which could not be resolved."""
    return OutcomeUnknown(
        f"It is not known whether the write to {named(family, key)} was stored",
        hint=f"`kvctl table get {table} KEY -o json` shows what is there now",
    )


def _problem(change: Change, there: Entry | None) -> str | None:
    """Why a change's condition does not hold; None when it does."""
    if change.version == NO_VERSION or (change.version == NOT_EXISTS and there is None):
        return None
    if there is None:
        return f"is not at version {change.version}: it does not exist"
    if change.version == NOT_EXISTS:
        return f"exists, at version {there.version}"
    return None if there.version == change.version else f"is at version {there.version}, not {change.version}"
