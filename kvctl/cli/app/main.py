"""Command registry, and the run of a command line up to its exit code."""

import os
import sys
from collections.abc import Coroutine
from functools import partial
from importlib import import_module
from typing import Any, NoReturn, TextIO

from kvctl import deferred, topics
from kvctl.cli.app import error_report
from kvctl.cli.app.command import Call, Command, Group, GroupEntry, NoCommand, build
from kvctl.cli.app.help_page import Page, TextRequested, built_page, usage, version_option, wrapped_words
from kvctl.cli.app.options import SharedValues, output_of
from kvctl.cli.app.session import Session, run_until_signal
from kvctl.errors import KvctlError, UsageError
from kvctl.render.terminal import Terminal
from kvctl.render.view import DOCUMENTS

COMMANDS: dict[str, dict[str, tuple[str, str]]] = {
    "Buckets and topologies": {
        "bucket": ("bucket: manage data details views", "Create, inspect, change and move buckets"),
        "mirror": ("topology.mirror", "Local read replicas of buckets"),
        "aggregate": ("topology.aggregate", "Buckets merged from other buckets"),
        "topology": (
            "topology: render plan apply audit export graph status",
            "Buckets, mirrors and aggregates described in a file",
        ),
        "doctor": ("doctor", "Check for problems and suggest fixes"),
        "top": ("top", "Watch all buckets on a live screen"),
    },
    "Keys": {
        "get": ("keys.read", "Read keys"),
        "put": ("keys.write", "Write a key"),
        "create": ("keys.write", "Write a key if it does not exist"),
        "update": ("keys.write", "Write a key if it has not changed"),
        "edit": ("keys.edit", "Edit a value in an editor"),
        "delete": ("keys.removal", "Delete keys"),
        "purge": ("keys.removal", "Delete keys with their history"),
        "copy": ("keys.write", "Copy a key"),
        "rename": ("keys.write", "Rename a key"),
        "revert": ("keys.write", "Restore an earlier value"),
        "touch": ("keys.write", "Renew the ttl of a key"),
        "history": ("keys.read", "Show earlier values of keys"),
        "keys": ("keys.read", "List keys"),
        "watch": ("keys.watch", "Watch keys for changes"),
        "wait": ("keys.watch", "Wait for a key"),
        "txn": ("keys.txn", "Change several keys atomically, on conditions"),
        "lock": ("process.lock", "Run a command under a lease"),
        "env": ("process.env", "Run a command with keys as environment variables"),
        "load": ("keys.transfer", "Load rows or a dump into a bucket"),
        "dump": ("keys.transfer", "Dump a bucket to a file for `load`"),
    },
    "Streams": {
        "stream": ("stream: manage messages", "JetStream streams, including those of buckets"),
        "consumer": ("consumer: manage messages", "Consumers: read positions on streams"),
    },
    "Tables": {
        "table": ("table: entries manage", "Key-value tables: keys of any bytes, families, versions, atomic batches")
    },
    "Versioned buckets": {
        "repo": ("repo: manage commit merge checkout", "Versioned buckets: branches, commits, diff, merge, roll back"),
        "branch": ("repo.refs", "Branches of versioned buckets"),
        "tag": ("repo.refs", "Tags of versioned buckets"),
    },
    "Pipeline": {
        "pipeline": ("pipeline: export load capture run", "Export, load, capture and compare buckets with Spark")
    },
    "Setup": {
        "quickstart": ("quickstart", "Run a short tour on a temporary server"),
        "context": ("context", "Named connections"),
        "server": ("server", "Run NATS servers"),
        "completion": ("app.completion", "Print the completion script of a shell, or install it"),
        "help": ("app.help", "Show help on a command or topic"),
        "version": ("app.help", "Show the version"),
    },
}
"""Section of the help -> command -> (module in cli/, or its room and modules, which run on first use; summary)."""
NESTED = {"repo": ("branch", "tag")}
"""Group -> commands of the root that it takes as its own, without listing them."""

BRIEF = ("Keys", "Setup")
"""Sections of commands whose names need no summary in the overview."""

HELP = "NATS key-value buckets and the topologies that replicate them"


def main(argv: list[str] | None = None, tree: Group | None = None) -> int:
    """Run a command line and return its exit code; without one, run that of the process and end the process."""
    code = _reported(tree or root(), sys.argv[1:] if argv is None else argv)
    if argv is None:
        _leave(code)
    return code


def root() -> Group:
    """Return the complete command tree, with no command loaded."""
    entries = {
        name: GroupEntry(summary, partial(_load, modules, name, summary), section)
        for section, commands in COMMANDS.items()
        for name, (modules, summary) in commands.items()
    }
    entries["__complete"] = GroupEntry("", partial(_load, "app.completion", "__complete", ""), hidden=True)
    return Root("kvctl", HELP, entries, [version_option()])


def _load(modules: str, name: str, summary: str) -> Command | Group:
    room, _, names = modules.rpartition(": ")
    loaded = [f"kvctl.cli.{f'{room}.' if room else ''}{module}" for module in names.split()]
    for module in loaded:
        deferred.run(import_module(module))
    built = build(name, summary, loaded)
    if isinstance(built, Group):
        listed = {command: entry for commands in COMMANDS.values() for command, entry in commands.items()}
        for inner in NESTED.get(name, ()):
            about = listed[inner][1]
            built.entries[inner] = GroupEntry(about, partial(_load, listed[inner][0], inner, about), hidden=True)
    return built


class Root(Group):
    """Root group, whose help also lists the topics."""

    def overview(self, ctx: Any, stream: TextIO | None) -> str:
        """Return commands and topics on one screen: without options, and without summaries of everyday commands."""

        def write(page: Page) -> None:
            page.text(HELP)
            page.line("Usage", usage(ctx))
            for section, rows in super(Root, self).command_sections().items():
                if section in BRIEF:
                    page.block(section, wrapped_words([name.strip() for name, _ in rows], page.width - 2))
                else:
                    page.list(section, rows)
            page.block("Help topics (kvctl help TOPIC)", wrapped_words(["options", *topics.titles()], page.width - 2))
            page.text("`kvctl COMMAND --help` explains a command, `kvctl help options` the options of every command.")

        return built_page(ctx, stream, write)

    def command_sections(self) -> dict[str, list[tuple[str, str]]]:
        listed = list(topics.titles().items())
        return {**super().command_sections(), **({"Help topics (kvctl help TOPIC)": listed} if listed else {})}


def _reported(tree: Group, argv: list[str]) -> int:
    shared = SharedValues()
    try:
        if sys.stdout is None:
            raise KvctlError("Standard output is closed")
        return _run(tree, argv, shared)
    except BaseException as error:
        if shared.output is None:  # the line was not read to its end
            shared.output = output_of(argv)
        return error_report.report(error, _terminal(shared), argv, shared.context)


def _run(tree: Group, argv: list[str], shared: SharedValues) -> int:
    try:
        call: Call = tree.invoke(tree.make_context("kvctl", list(argv), obj=shared))
        return _called(call, Session(shared, _terminal(shared)))
    except TextRequested as request:
        _terminal(shared).page(f"{request}\n")
        return 0
    except NoCommand as request:
        if output_of(argv) in DOCUMENTS:
            raise UsageError("Missing command", hint=f"`{request.path} --help` lists the commands") from None
        _terminal(shared).emit(str(request))
        return 2


def _called(call: Call, session: Session) -> int:
    result = call(session)
    if isinstance(result, Coroutine):
        result = run_until_signal(session, result)
    return result or 0


def _terminal(shared: SharedValues) -> Terminal:
    return Terminal(
        color=shared.color, quiet=shared.quiet, verbose=shared.verbose, documents=shared.output in DOCUMENTS
    )


def _leave(code: int) -> NoReturn:
    """End the process without the interpreter's shutdown, which takes longer than most commands."""
    if code < 128:  # after a signal, a thread may be blocked in a write
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            pass
        except (OSError, ValueError, AttributeError):
            code = code or 1
    os._exit(code)
