"""Named connections, in the context files of the `nats` command."""

import os
from dataclasses import replace
from datetime import timedelta
from typing import Annotated

import typer

import kvctl
from kvctl import contexts
from kvctl.cli.app.command import command, group
from kvctl.cli.app.options import Yes, context_names, deletes, duration
from kvctl.cli.app.session import Session
from kvctl.cli.context import views
from kvctl.cli.context.views import FIELDS, details, difference_text, differences, facts_of, summary
from kvctl.cli.records import CHANGE, CONTEXT, CONTEXT_ROW, CONTEXT_TEST, DIFFERENCE
from kvctl.errors import ConflictError, ContextNotFound, KvctlError, UsageError
from kvctl.render.fields import columns
from kvctl.render.view import Column, View, document

group(
    "context",
    """Named connections

    A context holds a server's URL and how to authenticate. Contexts are the files that the `nats` command keeps in
    ~/.config/nats, and both commands read and write them. Every command takes --context NAME. Without it, the selected
    context is used.
    """,
)

_FLAG_NAMES = {"server": "url", "tls-cert": "cert", "tls-key": "key", "tls-ca": "ca"}
_FILES = ("creds", "nkey", "cert", "key", "ca")
_CLEARABLE = [name for name in FIELDS if name not in ("name", "url")]


def _names(ctx: typer.Context, incomplete: str) -> list[str]:
    return context_names(incomplete)


Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the context", autocompletion=_names)]
OptionalName = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="Name of the context", autocompletion=_names)
]
Description = Annotated[str | None, typer.Option("--description", metavar="TEXT", help="Description of the context")]
Select = Annotated[bool, typer.Option("--select", help="Select the context as well")]


@command(
    "context ls", examples=["kvctl context ls", "kvctl context ls -o name"], see=["context show"], prints=(CONTEXT_ROW,)
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
    shown = columns("selected name url authentication description", selected=chosen)
    empty = "No contexts; add one with `kvctl context add NAME`"
    session.show(View(columns=shown, tsv=CONTEXT_ROW.columns, rows=rows, empty=empty))


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
        context = _store().stored(name)
        facts = facts_of(context)
        for warning in context.warnings:
            session.warn(warning)
    session.show(details(facts))


@command("context select", examples=["kvctl context select prod"], see=["context ls"])
def select(session: Session, name: Name) -> None:
    """Select the context to use by default."""
    _store().select(name)
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
    url: Annotated[str | None, typer.Option("--url", metavar="URL", help="Same as --server", hidden=True)] = None,
    description: Description = None,
    select: Select = False,
) -> None:
    """Add a context.

    The connection options set its fields, and --context OTHER starts from a copy of that context. A context that
    already exists with the same settings is left unchanged. One with different settings is a conflict (exit code 4).
    """
    store = _store()
    wanted = _changed(session, _template(session, store), url, description)
    wanted = replace(wanted, name=name)
    _check(wanted)
    if name in store.names():
        _require_equal(store.stored(name), wanted)
        session.note(f"Context `{name}` already exists with these settings")
    else:
        session.note(f"Saved `{name}` in `{store.save(wanted)}`")
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
    url: Annotated[str | None, typer.Option("--url", metavar="URL", help="Same as --server", hidden=True)] = None,
    description: Description = None,
    clear: Annotated[
        list[str] | None, typer.Option("--clear", metavar="FIELD", help="Clear a field; repeatable")
    ] = None,
    select: Select = False,
) -> None:
    """Change a context.

    Changes the fields that the connection options name, and shows them. --clear clears a field, which is named like
    its option without the dashes: `user`, `password`, `tls-ca`, `domain`, `read-only` ...
    """
    store = _store()
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
    _finish(session, store, name, select, shown=True)


@command("context delete", examples=["kvctl context delete old", "kvctl context delete old --yes"], prints=(CHANGE,))
@deletes("name", ContextNotFound)
async def delete(session: Session, name: Name, yes: Yes = False) -> None:
    """Delete a context.

    The credential and certificate files that it names are kept.
    """
    store = _store()
    if name in store.names():
        await session.confirm(f"Delete context `{name}`?", yes=yes)
    store.delete(name)
    if session.options.output:
        session.show(document({"name": name, "changed": True}))
    else:
        session.note(f"Deleted `{name}`")


@command(
    "context test",
    examples=[
        "kvctl context test",
        "kvctl context test prod -o json",
        "kvctl context test prod --bucket orders",
        "kvctl context test --wait-for 30s",
    ],
    see=["context show", "server run"],
    prints=(CONTEXT_TEST,),
)
async def examine(
    session: Session,
    name: OptionalName = None,
    bucket: Annotated[
        str | None, typer.Option("--bucket", metavar="BUCKET", help="Test the permissions on this bucket")
    ] = None,
    wait_for: Annotated[
        timedelta | None, duration("--wait-for", help="Maximum time to wait until the server answers")
    ] = None,
) -> None:
    """Test a connection and its permissions.

    Connects, measures the round trip to the server, shows usage and limits of the account, and probes every API
    subject that kvctl uses without changing anything. Exits 5 when JetStream cannot be used.

    With --wait-for, tests again and again until the server answers and JetStream has a leader, and exits 9 when the
    time is up. Refused credentials are an error immediately.
    """
    if name is not None:
        session.options.context = name
    await views.report(session, session.context, bucket, wait_for)


def _store() -> "contexts.ContextStore":
    return contexts.ContextStore()


def _template(session: Session, store: "contexts.ContextStore") -> "kvctl.Context":
    other = session.options.context
    return kvctl.Context() if other is None else store.stored(other)


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


def _finish(session: Session, store: "contexts.ContextStore", name: str, select: bool, *, shown: bool = False) -> None:
    if select:
        store.select(name)
        session.note(f"Selected `{name}`")
    if not shown and session.output in ("json", "ndjson", "yaml"):
        session.show(details(facts_of(store.stored(name))))
