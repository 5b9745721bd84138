"""Contexts for display, with secrets only as `set`."""

from collections.abc import Iterator
from typing import Any

import kvctl
from kvctl import urls
from kvctl.cli.records import CONTEXT
from kvctl.render.view import Column, View, document

FIELDS = CONTEXT.fields[: CONTEXT.fields.index("authentication")]
"""Fields of a context file."""
_LABELS = {
    "creds": "Credentials",
    "nkey": "NKey seed",
    "user_jwt": "User JWT",
    "cert": "TLS certificate",
    "key": "TLS key",
    "ca": "TLS authority",
}
_CHANGED = "changed"
_WAYS = {"creds": "creds", "nkey": "nkey", "user_jwt": "jwt", "user": "password", "token": "token", "cert": "tls"}


def summary(context: "kvctl.Context", selected: str | None) -> dict[str, Any]:
    """Build one row of the list of contexts."""
    return {
        "name": context.name,
        "url": urls.redact(context.url),
        "authentication": authentication(context),
        "selected": context.name == selected,
        "description": context.description or None,
    }


def authentication(context: "kvctl.Context") -> str:
    """Return the kind of credentials in one word."""
    if "@" in context.url:
        return "url"
    return next((kind for field, kind in _WAYS.items() if getattr(context, field)), "none")


def facts_of(context: "kvctl.Context") -> dict[str, Any]:
    """Return the settings for display; a secret is `set` or null."""
    facts = {name: None if (value := getattr(context, name)) == "" else value for name in FIELDS}
    facts |= dict.fromkeys(context.secrets(), "set")
    return {**facts, "url": urls.redact(context.url), "authentication": authentication(context)}


def details(facts: dict[str, Any]) -> View:
    """Build a document that lists the fields that are set in a table, and every field in other formats."""
    shown = [Column(key, _LABELS.get(key)) for key, value in facts.items() if value]
    return document(facts, *shown, tsv=tuple(facts))


def difference_text(row: dict[str, Any]) -> str:
    """Describe one difference in words."""
    if row["after"] == _CHANGED:
        return f"`{row['field']}` differs"
    before, after = (f"`{value}`" if value is not None else "unset" for value in (row["before"], row["after"]))
    return f"`{row['field']}` is {before}, not {after}"


def differences(before: "kvctl.Context", after: "kvctl.Context") -> Iterator[dict[str, Any]]:
    """Yield the fields that differ: `{field, before, after}`."""
    shown_before, shown_after = facts_of(before), facts_of(after)
    for name in FIELDS[1:]:
        if (getattr(before, name) or None) != (getattr(after, name) or None):
            old, new = shown_before[name] or None, shown_after[name] or None
            # Values that differ but look the same are secrets, or URLs with one.
            yield {"field": name, "before": old, "after": _CHANGED if old == new else new}
