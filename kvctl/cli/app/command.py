"""Groups and commands. Parsing a command line gives a call; running it is main's part."""

import inspect
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from kvctl.cli.app.global_options import shared_options
from kvctl.cli.app.help_page import HelpPage, help_option, tail_of
from kvctl.cli.app.session import Session
from kvctl.cli.app.typer_adapter import keep_tail, take_digits_as_arguments
from kvctl.errors import UsageError

Call = Callable[[Session], Awaitable[int | None] | int | None]
"""A command with its arguments, which wants a session and may return an exit code."""

ALIASES = (
    ("add", "create", "new"),
    ("rm", "del", "delete"),
    ("info", "view", "show", "status"),
    ("list", "ls"),
)
"""Names that stand for one another, wherever one of them is a command and the others are none."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A command of a group, as its help lists it; `load` makes the command itself."""

    summary: str
    load: Callable[[], "Command | Group"]
    section: str = "Commands"
    hidden: bool = False


@dataclass(frozen=True, slots=True)
class Noun:
    """A group in the making. Without a name, its commands stand at the root."""

    name: str
    help: str
    entries: dict[str, Entry] = field(default_factory=dict)

    def build(self) -> "Group":
        """The group itself."""
        return Group(self.name, self.help, self.entries)


def group(name: str = "", *, help: str = "", parent: Noun | None = None) -> Noun:
    """A group of commands, the `app` of a module in cli/; commands join it by `@command(app, NAME)`."""
    noun = Noun(name, inspect.cleandoc(help))
    if parent is not None:
        parent.entries[name] = Entry(noun.help.partition("\n")[0], noun.build)
    return noun


def command(
    app: Noun, name: str, *, examples: Sequence[str], see: Sequence[str] = (), hidden: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a function a command: `async def ls(session: Session, ...Typer parameters)`.

    Its docstring is the help; `examples` are command lines; `see` names related commands and topics.
    The function may return an exit code. It may be a plain function, too.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        binder = _binder(function, examples, see)
        summary = inspect.cleandoc(function.__doc__ or "").partition("\n")[0].rstrip(".")
        app.entries[name] = Entry(summary, partial(_build, binder, name, hidden), hidden=hidden)
        return function

    return register


def _binder(function: Callable[..., Any], examples: Sequence[str], see: Sequence[str]) -> Callable[..., Call]:
    """`function` without its session, as Typer shall see it: called with the arguments, it gives the call."""

    def bind(**arguments: Any) -> Call:
        return partial(function, **arguments)

    signature = inspect.signature(function)
    _session, *parameters = signature.parameters.values()
    bind.__dict__.update(
        __signature__=signature.replace(parameters=parameters, return_annotation=None),
        examples=examples,
        see=see,
    )
    bind.__doc__ = function.__doc__
    bind.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return bind


def _build(binder: Callable[..., Call], name: str, hidden: bool) -> "Command":
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(name, cls=Command, hidden=hidden, add_help_option=False)(binder)
    built = get_command(app)
    assert isinstance(built, Command)
    return built


def _with_shared(own: list[Any]) -> list[Any]:
    """The parameters, then the shared options whose names the command does not use itself."""
    taken = {spelling for param in own for spelling in param.opts}
    shared = [option for option in shared_options() if taken.isdisjoint(option.opts)]
    return [*own, *shared, help_option()]


class Command(HelpPage, TyperCommand):
    """A command with the shared options."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.params = _with_shared(self.params)

    def make_parser(self, ctx: Any) -> Any:
        """Typer's parser, for which `-5` and `-15m` are arguments, and what follows `--` may belong to one of them."""
        parser = super().make_parser(ctx)
        tail = tail_of(self.params)
        if tail is not None:
            keep_tail(parser, tail)
        take_digits_as_arguments(parser)
        return parser


class Group(HelpPage, TyperGroup):
    """A group that makes a command when it is used, and takes the aliases of COMMANDS.md."""

    def __init__(self, name: str, help: str, entries: Mapping[str, Entry], params: Sequence[Any] = ()) -> None:
        super().__init__(name=name, help=help, add_help_option=False, rich_markup_mode=None)
        self.params = _with_shared(list(params))
        self.entries = entries
        self._loaded: dict[str, Command | Group] = {}

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As Typer does; a group alone shows its help, and that is an error."""
        if not args and not ctx.resilient_parsing:
            raise NoCommand(self.help_text(ctx, sys.stderr))
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """`COMMAND [OPTIONS]`"""
        return ["COMMAND", "[OPTIONS]"]

    def command_sections(self) -> dict[str, list[tuple[str, str]]]:
        """The commands by the sections of the help, names padded to stand below each other across sections."""
        widest = max((len(name) for name in self.list_commands(None)), default=0)
        sections: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(None):
            entry = self.entries[name]
            sections.setdefault(entry.section, []).append((name.ljust(widest), entry.summary))
        return sections

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for name, entry in self.entries.items() if not entry.hidden]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of this name or alias, made at the first call; None if there is none."""
        name = self.canonical(cmd_name)
        if name is None:
            return None
        if name not in self._loaded:
            self._loaded[name] = self.entries[name].load()
        return self._loaded[name]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Name, command and what is left of the arguments. Raises UsageError with the nearest name."""
        name = self.canonical(args[0])
        if name is None:
            if ctx.resilient_parsing:
                return None, None, args[1:]
            raise self._unknown(ctx, args[0])
        return name, self.get_command(ctx, name), args[1:]

    def canonical(self, name: str) -> str | None:
        """The command that `name` means, itself or by an alias."""
        if name in self.entries:
            return name
        for names in ALIASES:
            if name in names:
                return next((other for other in names if other in self.entries), None)
        return None

    def aliases(self, name: str) -> list[str]:
        """Other names of a command."""
        names = next((names for names in ALIASES if name in names), ())
        return [other for other in names if other != name and self.canonical(other) == name]

    def _unknown(self, ctx: Any, name: str) -> UsageError:
        path = ctx.command_path
        close = get_close_matches(name, self.list_commands(ctx), n=1, cutoff=0.5)
        meant = f"Did you mean `{path} {close[0]}`? " if close else ""
        return UsageError(f"No such command `{path} {name}`", hint=f"{meant}`{path} --help` lists the commands")


class NoCommand(Exception):
    """A group was called without a command; its text is the group's help."""
