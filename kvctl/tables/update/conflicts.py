"""Errors that name every conflicting entry, which servers do not. [pure]"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kvctl.errors import BadKeyVersion, ConditionalUpdateError, NoSuchKey, OutcomeUnknown
from kvctl.tables.changes import NO_VERSION, NOT_EXISTS, Change, named
from kvctl.tables.entry import Entry


def refusal(changes: Iterable[tuple[str, Change]], found: Mapping[str, Entry | None]) -> ConditionalUpdateError:
    """Return the error for changes, each with its place, whose conditions fail for the entries found there.

    Places that are missing in `found` are not checked.
    """
    failed: list[tuple[str | None, bytes, str | None]] = []
    lines: list[str] = []
    for place, change in changes:
        if place in found and (problem := _problem(change, there := found[place])):
            failed.append((change.family, change.key, str(there.version) if there else None))
            lines.append(f"{named(change.family, change.key)} {problem}")
    kind = BadKeyVersion if any(version for *_, version in failed) or not failed else NoSuchKey
    message = "\n".join(lines) or "An entry was changed concurrently, and changed back"
    return kind(
        message, failed=tuple(failed), hint="Nothing was written; see current versions with `kvctl table get -o json`"
    )


def unknown(table: str, family: str | None, key: bytes) -> OutcomeUnknown:
    """Return the error for a write whose acknowledgement was lost and could not be resolved."""
    return OutcomeUnknown(
        f"The outcome of the write to {named(family, key)} is unknown",
        hint=f"Check the entry with `kvctl table get {table} KEY -o json`",
    )


def _problem(change: Change, there: Entry | None) -> str | None:
    """Return why a change's condition fails; None if it holds."""
    if change.version == NO_VERSION or (change.version == NOT_EXISTS and there is None):
        return None
    if there is None:
        return f"is not at version {change.version}: it does not exist"
    if change.version == NOT_EXISTS:
        return f"exists at version {there.version}"
    return None if there.version == change.version else f"is at version {there.version}, not {change.version}"
