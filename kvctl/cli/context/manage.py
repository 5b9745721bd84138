"""Named connections: the `nats` command's own context files."""

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from kvctl.cli.app.command import command, group
from kvctl.cli.app.parameters import Yes
from kvctl.cli.app.session import Session
from kvctl.cli.context.views import (
    FIELDS,
    details,
    difference_text,
    differences,
    facts_of,
    summary,
)
from kvctl.errors import ConflictError, KvctlError, UsageError
from kvctl.render.view import Column, View

if TYPE_CHECKING:
    from kvctl.contexts import Context, ContextStore

app = group(
    "context",
    help="""Named connections

    A context holds a server's URL and how to authenticate. Contexts are the files that the `nats` command keeps in
    ~/.config/nats: both read and write the same ones. Every command takes --context NAME; without it, the selected
    one is used.
    """,
)

_FLAG_NAMES = {"server": "url", "tls-cert": "cert", "tls-key": "key", "tls-ca": "ca"}
_FILES = ("creds", "nkey", "cert", "key", "ca")
_CLEARABLE = [name for name in FIELDS if name not in ("name", "url")]


def _names(ctx: typer.Context, incomplete: str) -> list[str]:
    from kvctl.cli.app.live_names import contexts

    return contexts(incomplete)


Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the context", autocompletion=_names)]
OptionalName = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="Name of the context", autocompletion=_names)
]
Description = Annotated[str | None, typer.Option("--description", metavar="TEXT", help="What it is for")]
Select = Annotated[bool, typer.Option("--select", help="Select it, too")]


@command(app, "ls", examples=["kvctl context ls", "kvctl context ls -o name"], see=["context show"])
def ls(session: Session) -> None:
    """List contexts."""
    from kvctl.contexts import ContextStore

    store = ContextStore()
    selected, rows = store.selected(), []
    for name in store.names():
        try:
            rows.append(summary(store.stored(name), selected))
        except KvctlError as error:
            session.warn(error.message)
    columns = [
        Column("selected", "", text=lambda chosen: "*" if chosen else "", tsv=False),
        Column("name"),
        Column("url", flex=True),
        Column("authentication"),
        Column("selected", table=False),
        Column("description", flex=True),
    ]
    session.show(View(columns=columns, rows=rows, empty="No contexts; `kvctl context add NAME` makes one"))


@command(
    app,
    "show",
    examples=["kvctl context show", "kvctl context show prod -o json"],
    see=["context test", "help environment"],
)
def show(session: Session, name: OptionalName = None) -> None:
    """Show a context, or how a command would connect now.

    Without a NAME: what flags, environment and the selected context come to, and where the URL is from.
    Secrets are not shown, only that they are set.
    """
    if name is None:
        context = session.context
        facts = {**facts_of(context), "origin": context.origin}
    else:
        context = _store().stored(name)
        facts = facts_of(context)
        for warning in context.warnings:
            session.warn(warning)
    session.show(details(facts))


@command(app, "select", examples=["kvctl context select prod"], see=["context ls"])
def select(session: Session, name: Name) -> None:
    """Use a context where nothing else is said."""
    _store().select(name)
    session.note(f"Selected `{name}`")


@command(
    app,
    "add",
    examples=[
        "kvctl context add prod --server nats://n1:4222,nats://n2:4222 --creds ~/prod.creds --select",
        "kvctl context add local --server nats://127.0.0.1:4222 --user ann --password-file secret.txt",
        "kvctl context add edge --context prod --domain edge --read-only",
    ],
    see=["context test", "context edit"],
)
def add(
    session: Session,
    name: Name,
    url: Annotated[str | None, typer.Option("--url", metavar="URL", help="The same as --server", hidden=True)] = None,
    description: Description = None,
    select: Select = False,
) -> None:
    """Make a context.

    The connection options say what it holds; --context OTHER starts from a copy of that one. A context that
    exists with the same settings is left alone; one with others is a conflict (exit code 4).
    """
    store = _store()
    wanted = _changed(session, _template(session, store), url, description)
    wanted = replace(wanted, name=name)
    _check(wanted)
    if name in store.names():
        _require_equal(store.stored(name), wanted)
        session.note(f"Context `{name}` is there already")
    else:
        session.note(f"Saved `{name}` in `{store.save(wanted)}`")
    _finish(session, store, name, select)


@command(
    app,
    "edit",
    examples=["kvctl context edit prod --domain hub", "kvctl context edit prod --clear password --creds prod.creds"],
    see=["context show"],
)
def edit(
    session: Session,
    name: Name,
    url: Annotated[str | None, typer.Option("--url", metavar="URL", help="The same as --server", hidden=True)] = None,
    description: Description = None,
    clear: Annotated[
        list[str] | None, typer.Option("--clear", metavar="FIELD", help="Empty a field; repeatable")
    ] = None,
    select: Select = False,
) -> None:
    """Change a context.

    Only what the connection options name is changed, and shown; --clear empties a field, named as its option
    without the dashes: `user`, `password`, `tls-ca`, `domain`, `read-only` ...
    """
    store = _store()
    before = store.stored(name)
    after = _changed(session, _cleared(before, clear or []), url, description)
    _check(after)
    rows = list(differences(before, after))
    if rows:
        store.save(after)
    columns = [Column("field"), Column("before"), Column("after")]
    session.show(View(columns=columns, rows=rows, name="field", empty="Nothing to change"))
    _finish(session, store, name, select, shown=True)


@command(app, "delete", examples=["kvctl context delete old", "kvctl context delete old --yes"])
async def delete(session: Session, name: Name, yes: Yes = False) -> None:
    """Delete a context.

    Files that it names, of credentials or certificates, stay.
    """
    store = _store()
    if name in store.names():
        await session.confirm(f"Delete context `{name}`?", yes=yes)
    store.delete(name)
    session.note(f"Deleted `{name}`")


@command(
    app,
    "test",
    examples=["kvctl context test", "kvctl context test prod -o json", "kvctl context test prod --bucket orders"],
    see=["context show"],
)
async def examine(
    session: Session,
    name: OptionalName = None,
    bucket: Annotated[
        str | None, typer.Option("--bucket", metavar="BUCKET", help="Test the permissions on this bucket")
    ] = None,
) -> None:
    """Say what works over a connection, and what is denied.

    Connects, measures the way to the server, shows usage and limits of the account, and asks every API subject that
    kvctl uses in a way that changes nothing. Exit code 5 when JetStream cannot be used.
    """
    from kvctl.cli.context.report import report

    if name is not None:
        session.options.context = name
    await report(session, session.context, bucket)


def _store() -> "ContextStore":
    from kvctl.contexts import ContextStore

    return ContextStore()


def _template(session: Session, store: "ContextStore") -> "Context":
    from kvctl.contexts import Context

    other = session.options.context
    return Context() if other is None else store.stored(other)


def _changed(session: Session, context: "Context", url: str | None, description: str | None) -> "Context":
    """The context with what the command line says; files by their full path, for use from everywhere."""
    from kvctl.contexts import flag_settings

    flags = {**session.options.connection_flags()}
    if url is not None:
        flags["server"] = url
    settings = flag_settings(flags)
    settings |= {name: os.path.abspath(settings[name]) for name in _FILES if name in settings}
    if description is not None:
        settings["description"] = description
    return replace(context, **settings)


def _check(context: "Context") -> None:
    ways = {"user": context.user, "creds": context.creds, "nkey": context.nkey, "user_jwt": context.user_jwt}
    given = [name for name, value in ways.items() if value]
    if len(given) > 1:
        raise UsageError(
            f"`{given[0]}` and `{given[1]}` are two ways to authenticate",
            hint=f"Give one of them; `kvctl context edit {context.name} --clear {given[0]}` empties a field",
        )
    if context.password and not context.user:
        raise UsageError("A password needs a user", hint="Add `--user NAME`")


def _require_equal(existing: "Context", wanted: "Context") -> None:
    rows = list(differences(existing, wanted))
    if rows:
        raise ConflictError(
            f"Context `{existing.name}` exists with other settings: {'; '.join(map(difference_text, rows))}",
            hint=f"`kvctl context edit {existing.name}` changes it",
        )


def _cleared(context: "Context", fields: list[str]) -> "Context":
    from kvctl.contexts import Context

    empty = Context()
    for field in fields:
        name = _FLAG_NAMES.get(field, field).replace("-", "_")
        if name not in _CLEARABLE:
            known = ", ".join(sorted(_CLEARABLE)).replace("_", "-")
            raise UsageError(f"`{field}` is not a field that can be cleared", hint=f"One of {known}")
        context = replace(context, **{name: getattr(empty, name)})
    return context


def _finish(session: Session, store: "ContextStore", name: str, select: bool, *, shown: bool = False) -> None:
    if select:
        store.select(name)
        session.note(f"Selected `{name}`")
    if not shown and session.output in ("json", "ndjson", "yaml"):
        session.show(details(facts_of(store.stored(name))))
