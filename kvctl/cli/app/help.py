"""`kvctl help` on topics and commands, and `kvctl version`."""

import sys
from typing import Annotated, Any

import typer

from kvctl import __version__, topics
from kvctl.cli.app import completion, main
from kvctl.cli.app.command import Group, command
from kvctl.cli.app.help_page import built_page, shared_list
from kvctl.cli.app.options import argument
from kvctl.cli.app.session import Session
from kvctl.cli.records import VERSION
from kvctl.errors import UsageError
from kvctl.render import markdown as render_markdown
from kvctl.render.view import document
from kvctl.suggest import nearest


def _names(ctx: typer.Context, incomplete: str) -> list[str]:
    words = ctx.params.get("names") or []
    commands = [name for name, _ in completion.complete(main.root(), words, incomplete)]
    return [*commands, *([] if words else ["options", *topics.titles()])]


@command("help", examples=["kvctl help", "kvctl help exit-codes", "kvctl help bucket add"])
def help_on(
    session: Session,
    names: Annotated[list[str] | None, argument("TOPIC|COMMAND", "Topic or command to explain", _names)] = None,
) -> None:
    """Show help on a command or topic.

    Without an argument, lists all commands and topics. `kvctl help options` explains the options of every command. On a
    terminal, long texts are shown in a pager (`kvctl help environment`).
    """
    if names and len(names) == 1 and names[0] in topics.titles():
        text = topics.page(names[0])
        session.page(render_markdown.styled(text) if session.terminal.colored else text)
    else:
        session.page(f"{_command_help(session, names or [])}\n")


@command("version", examples=["kvctl version", "kvctl version -o json"], prints=(VERSION,))
def version(session: Session) -> None:
    """Show the version."""
    python = ".".join(map(str, sys.version_info[:3]))
    session.show(document({"version": __version__, "python": python}, name="version"))


def _command_help(session: Session, names: list[str]) -> str:
    command: Any = main.root()
    ctx = command.make_context("kvctl", [], obj=session.options, resilient_parsing=True)
    if not names:
        return str(command.overview(ctx, sys.stdout))
    if names == ["options"]:
        return built_page(ctx, sys.stdout, shared_list)
    for name in names:
        canonical = command.canonical(name) if isinstance(command, Group) else None
        if canonical is None:
            raise _unknown(names)
        command = command.get_command(ctx, canonical)
        ctx = command.make_context(canonical, [], parent=ctx, resilient_parsing=True)
    return str(command.help_text(ctx, sys.stdout))


def _unknown(names: list[str]) -> UsageError:
    near = nearest(names[0], [*topics.titles(), *main.root().all_names()]) if len(names) == 1 else None
    meant = f"Did you mean `kvctl help {near}`? " if near else ""
    return UsageError(
        f"`{' '.join(names)}` is not a command or topic", hint=f"{meant}`kvctl help` lists commands and topics"
    )
