"""Contexts for display, with secrets only as `set`, and what `kvctl context test` finds."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from datetime import timedelta
from typing import Any

import kvctl
from kvctl import connection as kvctl_connection
from kvctl import urls
from kvctl.cli.app.session import Session
from kvctl.cli.records import CONTEXT, CONTEXT_TEST
from kvctl.errors import Away, JetStreamDisabled, KvctlError, PermissionDenied, WaitExpired
from kvctl.jetstream import api as jetstream_api
from kvctl.jetstream import permissions as jetstream_permissions
from kvctl.render.fields import columns
from kvctl.render.view import Column, View, document, size_text
from kvctl.units import format_duration

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


_LIMITS = {"memory": "max_memory", "storage": "max_storage", "streams": "max_streams", "consumers": "max_consumers"}
_READING = ("look at a bucket", "read a key", "list and watch keys")
_ALLOWED = {True: "yes", False: "no", None: "unknown"}
_STYLE = {"yes": "green", "no": "red", "unknown": "yellow"}


_PAUSE_S = 0.2
"""Seconds between two tests of a server that does not answer."""


async def report(session: Session, context: "kvctl.Context", bucket: str | None, patience: timedelta | None) -> None:
    """Connect, inspect the account and show the result. Raises UnreachableError when JetStream cannot be used.

    With `patience`, wait until it can. Raises WaitExpired.
    """
    facts: dict[str, Any] = {"name": context.name, "url": urls.redact(context.url), "url_from": context.origin}
    facts |= {"usable": False, "error": None, "server": None, "rtt": None, "jetstream": None, "permissions": []}
    try:
        if patience is None:
            await _inspect(facts, context, bucket)
        else:
            with session.progress("Waiting for the server"):
                await _inspect_patiently(facts, context, bucket, patience)
    except KvctlError as error:
        if session.output != "table" or facts["server"]:
            session.show(_view({**facts, "error": error.message}))
        raise
    session.show(_view(facts))
    if not facts["usable"]:
        denied = next(item for item in facts["permissions"] if item["action"] in _READING)
        raise PermissionDenied(
            f"No read access: {denied['reason']} on `{denied['subject']}`",
            subject=denied["subject"],
            hint=None if bucket else "If permissions are granted per bucket, name one with `--bucket NAME`",
        )


async def _inspect_patiently(
    facts: dict[str, Any], context: "kvctl.Context", bucket: str | None, patience: timedelta
) -> None:
    """Inspect the account until the server answers. Raises WaitExpired."""
    deadline = time.monotonic() + patience.total_seconds()
    while True:
        left = timedelta(seconds=max(deadline - time.monotonic(), _PAUSE_S))
        try:
            return await _inspect(facts, replace(context, timeout=min(left, context.timeout)), bucket)
        except Away as error:
            if time.monotonic() + _PAUSE_S > deadline:
                waited = format_duration(patience)
                raise WaitExpired(f"Gave up after {waited}: {error.message}", hint=error.hint) from None
        await asyncio.sleep(_PAUSE_S)


async def _inspect(facts: dict[str, Any], context: "kvctl.Context", bucket: str | None) -> None:
    connection = await kvctl_connection.connect(context)
    try:
        facts["server"] = _server(connection)
        facts["rtt"] = round(await jetstream_permissions.round_trip(connection), 6)
        api = jetstream_api.Api(connection)
        facts["jetstream"] = await _jetstream(api)
        access = await jetstream_permissions.probe(api, bucket)
        facts["permissions"] = [asdict(item) for item in access]
        facts["usable"] = facts["jetstream"] is not None or _can_read(access)
    finally:
        await connection.close()


def _server(connection: "kvctl_connection.Connection") -> dict[str, Any]:
    info = connection.server_info
    return {
        "name": info.get("server_name"),
        "version": info.get("version"),
        "url": connection.url,
        "cluster": info.get("cluster"),
        "domain": info.get("domain"),
        "tls": bool(info.get("tls_required")),
        "max_payload": info.get("max_payload"),
    }


async def _jetstream(api: Any) -> dict[str, Any] | None:
    """Return usage and limits of the account, a missing limit as None; None when permission to see them is denied."""
    try:
        info = await api.account_info()
    except PermissionDenied:
        return None
    except JetStreamDisabled:
        if api.prefix.startswith("$JS."):
            raise
        return None  # subjects imported from another account carry no account information
    allowed = info.get("limits", {})
    limits = {name: allowed[of] if allowed.get(of, -1) >= 0 else None for name, of in _LIMITS.items()}
    used = {name: info.get(name, 0) for name in _LIMITS}
    return {"domain": info.get("domain"), **used, "limits": limits, "tiers": info.get("tiers")}


def _can_read(access: "list[jetstream_permissions.Access]") -> bool:
    return any(item.allowed for item in access if item.action in _READING)


def _view(facts: dict[str, Any]) -> View:
    permissions = View(
        columns=columns(
            "action answer subject reason",
            answer=Column("answer", "Allowed", style=_STYLE.__getitem__),
            reason=Column("reason", keep=True, flex=True),
        ),
        rows=[{**item, "answer": _ALLOWED[item["allowed"]]} for item in facts["permissions"]],
    )
    usage = [Column("jetstream", name.capitalize(), text=_usage(name)) for name in _LIMITS]
    shown = columns(
        "name url url_from usable rtt server",
        url_from="URL from",
        rtt=Column("rtt", "Round trip", text=lambda seconds: f"{seconds * 1000:.1f} ms"),
        server=Column("server", text=_server_text),
    )
    return document(
        facts, *shown, *usage, tsv=CONTEXT_TEST.columns, name="usable", sections=[("Permissions", permissions)]
    )


def _server_text(server: dict[str, Any]) -> str:
    cluster = f", cluster {server['cluster']}" if server["cluster"] else ""
    domain = f", domain {server['domain']}" if server["domain"] else ""
    return f"{server['name']}, version {server['version']}{cluster}{domain}{', TLS' if server['tls'] else ''}"


def _usage(name: str) -> Any:
    show = size_text if name in ("memory", "storage") else str

    def text(jetstream: dict[str, Any]) -> str:
        limit = jetstream["limits"][name]
        return f"{show(jetstream[name])} of {'unlimited' if limit is None else show(limit)}"

    return text
