"""`kvctl context`: named connections, in the context files of the `nats` command, and a test of one."""

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import timedelta
from typing import Annotated, Any

import kvctl
from kvctl import connection as kvctl_connection
from kvctl import contexts, urls
from kvctl.cli.app.command import command, group
from kvctl.cli.app.options import Yes, argument, context_names, deletes, duration, flag, option
from kvctl.cli.app.session import Session
from kvctl.cli.flows import show_result
from kvctl.cli.records import CHANGE, CONTEXT, CONTEXT_ROW, CONTEXT_TEST, DIFFERENCE
from kvctl.errors import (
    Away,
    ConflictError,
    ContextNotFound,
    JetStreamDisabled,
    KvctlError,
    PermissionDenied,
    UsageError,
    WaitExpired,
)
from kvctl.jetstream import api as jetstream_api
from kvctl.jetstream import permissions as jetstream_permissions
from kvctl.kv import catalog
from kvctl.render.fields import columns, number_text, title_line
from kvctl.render.view import Column, Line, Row, View, document, size_text
from kvctl.units import format_duration

group(
    "context",
    """Named connections

    A context holds a server's URL and how to authenticate. Contexts are the files that the `nats` command keeps in
    ~/.config/nats, and both commands read and write them. Every command takes --context NAME. Without it, the selected
    context is used. `add` is also `create`, as for all other resources.
    """,
)

FIELDS = CONTEXT.fields[: CONTEXT.fields.index("authentication")]
"""Fields of a context file."""
_CHANGED = "changed"
_WAYS = {"creds": "creds", "nkey": "nkey", "user_jwt": "jwt", "user": "password", "token": "token", "cert": "tls"}
_FLAG_NAMES = {"server": "url", "tls-cert": "cert", "tls-key": "key", "tls-ca": "ca"}
_FILES = ("creds", "nkey", "cert", "key", "ca")
_CLEARABLE = [name for name in FIELDS if name not in ("name", "url")]


Name = Annotated[str, argument("NAME", "Name of the context", context_names)]
OptionalName = Annotated[str | None, argument("[NAME]", "Name of the context", context_names)]
Description = Annotated[str | None, option("--description", "TEXT", "Description of the context")]
Select = Annotated[bool, flag("--select", "Select the context as well")]


@command(
    "context ls",
    examples=["kvctl context ls", "kvctl context ls -o name"],
    see=["context show"],
    prints=(CONTEXT_ROW,),
    listing=True,
)
def ls(session: Session) -> None:
    """List contexts."""
    store = contexts.ContextStore()
    selected, rows = store.selected(), []
    for name in store.names():
        try:
            rows.append(summary(store.stored(name), selected))
        except KvctlError as error:
            session.warn(error.message)
    chosen = Column("selected", "", text=lambda chosen: "*" if chosen else "")
    shown = columns("name selected url authentication description", selected=chosen)
    empty = "No contexts; add one with `kvctl context add NAME`"
    session.show(View(columns=shown, rows=rows, empty=empty))


@command(
    "context show",
    examples=["kvctl context show", "kvctl context show prod -o json"],
    see=["context test", "help environment"],
    prints=(CONTEXT,),
    in_pipe="fields",
)
def show(session: Session, name: OptionalName = None) -> None:
    """Show a context, or the settings that are in effect.

    Without a NAME, shows the settings that result from flags, environment and the selected context, and the source of
    the URL. Secrets are never shown, only whether they are set.
    """
    if name is None:
        context = session.context
        facts = {**facts_of(context), "url_from": context.origin}
    else:
        context = contexts.ContextStore().stored(name)
        facts = facts_of(context)
        for warning in context.warnings:
            session.warn(warning)
    session.show(details(facts))


@command("context select", examples=["kvctl context select prod"], see=["context ls"])
def select(session: Session, name: Name) -> None:
    """Select the context to use by default."""
    contexts.ContextStore().select(name)
    session.note(f"Selected `{name}`")


@command(
    "context add",
    examples=[
        "kvctl context add prod --server nats://n1:4222,nats://n2:4222 --creds ~/prod.creds --select",
        "kvctl context add local --server nats://127.0.0.1:4222 --user ann --password-file secret.txt",
        "kvctl context add edge --context prod --domain edge --read-only",
    ],
    see=["context test", "context edit"],
    prints=(CONTEXT,),
)
def add(
    session: Session,
    name: Name,
    url: Annotated[str | None, option("--url", "URL", "Same as --server", hidden=True)] = None,
    description: Description = None,
    select: Select = False,
) -> None:
    """Add a context.

    The connection options set its fields, and --context OTHER starts from a copy of that context. A context that
    already exists with the same settings is left unchanged. One with different settings is a conflict (exit code 4).
    """
    store = contexts.ContextStore()
    other = session.options.context
    wanted = _changed(session, kvctl.Context() if other is None else store.stored(other), url, description)
    wanted = replace(wanted, name=name)
    _check(wanted)
    if name in store.names():
        _require_equal(store.stored(name), wanted)
        text = f"Context `{name}` already exists with these settings"
    else:
        text = f"Saved `{name}` in `{store.save(wanted)}`"
    show_result(session, facts_of(store.stored(name)), text)
    _finish(session, store, name, select)


@command(
    "context edit",
    examples=["kvctl context edit prod --domain hub", "kvctl context edit prod --clear password --creds prod.creds"],
    see=["context show"],
    prints=(DIFFERENCE,),
)
def edit(
    session: Session,
    name: Name,
    url: Annotated[str | None, option("--url", "URL", "Same as --server", hidden=True)] = None,
    description: Description = None,
    clear: Annotated[list[str] | None, option("--clear", "FIELD", "Clear a field; repeatable")] = None,
    select: Select = False,
) -> None:
    """Change a context.

    Changes the fields that the connection options name, and shows them. --clear clears a field, which is named like
    its option without the dashes: `user`, `password`, `tls-ca`, `domain`, `read-only` ...
    """
    store = contexts.ContextStore()
    before = store.stored(name)
    after = _changed(session, _cleared(before, clear or []), url, description)
    _check(after)
    rows = list(differences(before, after))
    if rows:
        store.save(after)
    plain = {name: Column(name, wrap=True) for name in ("before", "after")}
    session.show(
        View(columns=columns("field before after", **plain), rows=rows, name="field", empty="Nothing to change")
    )
    _finish(session, store, name, select)


@command("context delete", examples=["kvctl context delete old", "kvctl context delete old --yes"], prints=(CHANGE,))
@deletes("name", ContextNotFound)
async def delete(session: Session, name: Name, yes: Yes = False) -> None:
    """Delete a context.

    The credential and certificate files that it names are kept.
    """
    store = contexts.ContextStore()
    if name in store.names():
        await session.confirm(f"Delete context `{name}`?", yes=yes)
    store.delete(name)
    show_result(session, {"name": name, "changed": True}, f"Deleted context `{name}`")


@command(
    "context test",
    examples=[
        "kvctl context test",
        "kvctl context test prod -o json",
        "kvctl context test prod --bucket orders",
        "kvctl context test --wait-for 30s",
        "kvctl context test prod --bucket orders --wait-for 5m",
    ],
    see=["context show", "server run"],
    prints=(CONTEXT_TEST,),
    in_pipe="fields",
)
async def examine(
    session: Session,
    name: OptionalName = None,
    bucket: Annotated[str | None, option("--bucket", "BUCKET", "Test the permissions on this bucket")] = None,
    wait_for: Annotated[
        timedelta | None, duration("--wait-for", "Maximum time to wait until the server answers")
    ] = None,
) -> None:
    """Test a connection and its permissions.

    Connects, measures the round trip to the server, shows usage and limits of the account, and probes every API
    subject that kvctl uses without changing anything. Exits 5 when JetStream cannot be used.

    With --wait-for, tests again and again until the server answers and JetStream has a leader, with --bucket also the
    bucket, and exits 9 when the time is up. Refused credentials are an error immediately.
    """
    if name is not None:
        session.options.context = name
    await report(session, session.context, bucket, wait_for)


def _changed(session: Session, context: "kvctl.Context", url: str | None, description: str | None) -> "kvctl.Context":
    """Return the context with the settings of the command line; file paths become absolute."""
    flags = {**session.options.connection_flags()}
    if url is not None:
        flags["server"] = url
    settings = contexts.flag_settings(flags)
    settings |= {name: os.path.abspath(settings[name]) for name in _FILES if name in settings}
    if description is not None:
        settings["description"] = description
    return replace(context, **settings)


def _check(context: "kvctl.Context") -> None:
    ways = {"user": context.user, "creds": context.creds, "nkey": context.nkey, "user_jwt": context.user_jwt}
    given = [name for name, value in ways.items() if value]
    if len(given) > 1:
        raise UsageError(
            f"`{given[0]}` and `{given[1]}` cannot be combined",
            hint=f"Use one of them; clear the other with `kvctl context edit {context.name} --clear {given[0]}`",
        )
    if context.password and not context.user:
        raise UsageError("A password requires a user", hint="Add `--user NAME`")


def _require_equal(existing: "kvctl.Context", wanted: "kvctl.Context") -> None:
    rows = list(differences(existing, wanted))
    if rows:
        raise ConflictError(
            f"Context `{existing.name}` exists with different settings: {'; '.join(map(difference_text, rows))}",
            hint=f"Change it with `kvctl context edit {existing.name}`",
        )


def _cleared(context: "kvctl.Context", fields: list[str]) -> "kvctl.Context":
    empty = kvctl.Context()
    for field in fields:
        name = _FLAG_NAMES.get(field, field).replace("-", "_")
        if name not in _CLEARABLE:
            known = ", ".join(sorted(_CLEARABLE)).replace("_", "-")
            raise UsageError(f"`{field}` is not a field that can be cleared", hint=f"Use one of {known}")
        context = replace(context, **{name: getattr(empty, name)})
    return context


def _finish(session: Session, store: "contexts.ContextStore", name: str, select: bool) -> None:
    if select:
        store.select(name)
        session.note(f"Selected `{name}`")


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
    """Build a card of the settings that differ from the defaults; other formats have every field."""
    return document(facts, *map(Column, facts), tsv=tuple(facts), title=_title, groups=_GROUPS)


def _title(row: Row) -> Line:
    return title_line(row["name"], "context") if row["name"] else [("connection without a context", "dim")]


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
_READING = ("show a bucket", "read a key", "list and watch keys")
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
    """Inspect the account until the server, and the leader of the bucket, answer. Raises WaitExpired."""
    deadline = time.monotonic() + patience.total_seconds()
    while True:
        left = timedelta(seconds=max(deadline - time.monotonic(), _PAUSE_S))
        try:
            return await _inspect(facts, replace(context, timeout=min(left, context.timeout)), bucket, led=True)
        except Away as error:
            if time.monotonic() + _PAUSE_S > deadline:
                waited = format_duration(patience)
                raise WaitExpired(f"Gave up after {waited}: {error.message}", hint=error.hint) from None
        await asyncio.sleep(_PAUSE_S)


async def _inspect(facts: dict[str, Any], context: "kvctl.Context", bucket: str | None, *, led: bool = False) -> None:
    """Fill in the facts. With `led`, raises StreamOffline if the bucket has no leader, and BucketNotFound."""
    connection = await kvctl_connection.connect(context)
    try:
        facts["server"] = _server(connection)
        facts["rtt"] = round(await jetstream_permissions.round_trip(connection), 6)
        api = jetstream_api.Api(connection)
        facts["jetstream"] = await _jetstream(api)
        if led and bucket:
            with suppress(PermissionDenied):
                await catalog.find(api, bucket)
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
            "action answer subject",
            answer=Column("answer", "Allowed", style=_STYLE.__getitem__),
            subject=Column("subject", wrap=True, keep=True),
        ),
        below="remark",
        rows=[
            {**item, "answer": _ALLOWED[item["allowed"]], "remark": item["reason"] if item["allowed"] is None else None}
            for item in facts["permissions"]
        ],
    )
    usage = [Column("jetstream", name, text=_usage(name)) for name in _LIMITS]
    answer = columns(
        "server rtt",
        server=Column("server", text=_server_text),
        rtt=Column("rtt", "round trip", text=lambda seconds: f"{seconds * 1000:.1f} ms"),
    )
    return document(
        facts,
        *map(Column, CONTEXT_TEST.fields),
        tsv=CONTEXT_TEST.columns,
        name="usable",
        title=_tested_title,
        groups=(_GROUPS[1], answer, usage, columns("error")),
        sections=[("Permissions", permissions)],
    )


def _tested_title(row: Row) -> Line:
    usable = ("✓ usable", "green") if row["usable"] else ("✗ not usable", "red")
    return [*_title(row), (" · ", "dim"), usable]


_GROUPS = (
    columns("description", description=""),
    columns("url url_from", url=Column("url", text=lambda url: url.replace(",", ", ")), url_from="from"),
    columns(
        "authentication user password token creds nkey user_jwt user_seed cert key ca tls_first domain api_prefix "
        "inbox_prefix read_only",
        creds="credentials",
        nkey="NKey seed",
        user_jwt="JWT",
        cert="TLS certificate",
        key="TLS key",
        ca="TLS authority",
        tls_first=Column("tls_first", "", text=lambda first: "TLS first" * first),
        read_only=Column("read_only", "", text=lambda read_only: "read-only" * read_only),
    ),
)
"""Lines of a context's card: what it is for, where it connects, and how."""


def _server_text(server: dict[str, Any]) -> str:
    cluster = f", cluster {server['cluster']}" if server["cluster"] else ""
    domain = f", domain {server['domain']}" if server["domain"] else ""
    return f"{server['name']}, version {server['version']}{cluster}{domain}{', TLS' if server['tls'] else ''}"


def _usage(name: str) -> Any:
    show = size_text if name in ("memory", "storage") else number_text

    def text(jetstream: dict[str, Any]) -> str:
        limit = jetstream["limits"][name]
        return f"{show(jetstream[name])} of {'unlimited' if limit is None else show(limit)}"

    return text
