"""Groups and commands. Parsing a command line returns a call, which `main` runs."""

import inspect
import sys
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, NamedTuple, TextIO

import typer
from typer.core import TyperCommand
from typer.main import get_command

from kvctl import suggest
from kvctl.cli.app import error_report
from kvctl.cli.app.help_page import HelpPage, help_option, tail_of, usage
from kvctl.cli.app.options import TAIL, OptionGroup, SharedValues, listing_options, shared_options
from kvctl.cli.app.session import Session
from kvctl.cli.records import PrintedRecord, field_named, fields_of
from kvctl.errors import UsageError
from kvctl.phrases import quoted
from kvctl.render.terminal import is_terminal

Call = Callable[[Session], Coroutine[Any, Any, int | None] | int | None]
"""Command bound to its arguments, which takes a session and may return an exit code."""

ALIASES = [names.split() for names in ("add create new init", "rm del delete", "info view show status", "list ls")]
"""Equivalent names, wherever only one of them is a command."""
ONLY_A_COMMAND = "init"
"""Name that means a command of its own only: the others mean it, not the reverse."""


class GroupEntry(NamedTuple):
    """Entry of a group's help; `load` creates the command."""

    summary: str
    load: Callable[[], "Command | Group"]
    section: str = "Commands"
    hidden: bool = False


class Declaration(NamedTuple):
    """Command as its function declares it."""

    function: Callable[..., Any]
    examples: Sequence[str]
    see: Sequence[str]
    hidden: bool
    prints: tuple[PrintedRecord, ...]
    forces: Callable[[], Sequence[str]]
    in_pipe: str
    listing: bool

    @property
    def summary(self) -> str:
        """First line of the function's docstring."""
        return inspect.cleandoc(self.function.__doc__ or "").partition("\n")[0].rstrip(".")


_DECLARED: dict[str, Declaration] = {}
"""Path of each command whose module has run -> its declaration."""
_HELP: dict[str, str] = {}
"""Path of a group -> its help, if it is more than a line."""


def group(path: str, help: str) -> None:
    """Give the group at a path its help."""
    _HELP[path] = inspect.cleandoc(help)


def command(
    path: str,
    *,
    examples: Sequence[str],
    see: Sequence[str] = (),
    hidden: bool = False,
    prints: tuple[PrintedRecord, ...] = (),
    forces: Callable[[], Sequence[str]] = tuple,
    in_pipe: str = "tsv",
    listing: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare a function as the command at a path: `async def ls(session: Session, ...Typer parameters)`.

    Its docstring is the help, `examples` are command lines, and `see` names related commands and topics. `prints` are
    its records, first the one of an ordinary call in tsv, and `forces` returns the safety checks that `--force`
    overrides. `in_pipe` is its format without a terminal: `tsv` of a listing, `table` of a report, the same text as on
    a terminal, `fields` of one thing. A `listing`, whose rows are known before the first is printed, takes `--sort` and
    `--limit`. The function may return an exit code, and need not be a coroutine function.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        _DECLARED[path] = Declaration(function, examples, see, hidden, prints, forces, in_pipe, listing)
        return function

    return register


def build(path: str, summary: str, modules: Sequence[str] = ()) -> "Command | Group":
    """Build the command that is declared at a path, or else the group of all below it, in the order of the modules."""
    if path in _DECLARED:
        return _built(path.rpartition(" ")[2], _DECLARED[path])
    below = {name.removeprefix(f"{path} "): one for name, one in _DECLARED.items() if name.startswith(f"{path} ")}
    entries: dict[str, GroupEntry] = {}
    for name, one in sorted(below.items(), key=lambda item: _position(modules, item[1])):
        first, *rest = name.split()
        inner = f"{path} {first}"
        about = _HELP.get(inner, "").partition("\n")[0] if rest else one.summary
        entries.setdefault(first, GroupEntry(about, partial(build, inner, about), hidden=one.hidden))
    return Group(path.rpartition(" ")[2], _HELP.get(path, summary), entries)


def _position(modules: Sequence[str], declaration: Declaration) -> int:
    module = declaration.function.__module__
    return modules.index(module) if module in modules else 0


def _binder(function: Callable[..., Any]) -> Callable[..., Call]:
    """Wrap `function` for Typer, without its session: called with the arguments, it returns the call.

    A parameter that stands for an OptionGroup becomes the options of the group.
    """
    _session, *own = inspect.signature(function).parameters.values()
    groups = {parameter.name: group for parameter in own for group in _groups_of(parameter)}

    def bind(**arguments: Any) -> Call:
        taken = {name: group.take(arguments) for name, group in groups.items()}
        return partial(function, **arguments, **taken)

    parameters = [
        option
        for parameter in own
        for option in (groups[parameter.name].parameters(parameter.kind) if parameter.name in groups else (parameter,))
    ]
    bind.__dict__["__signature__"] = inspect.Signature(parameters)
    bind.__doc__ = function.__doc__
    bind.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return bind


def _groups_of(parameter: inspect.Parameter) -> list[OptionGroup]:
    return [item for item in getattr(parameter.annotation, "__metadata__", ()) if isinstance(item, OptionGroup)]


def _built(name: str, declaration: Declaration) -> "Command":
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(name, cls=Command, hidden=declaration.hidden, add_help_option=False)(_binder(declaration.function))
    built = get_command(app)
    assert isinstance(built, Command)
    if declaration.listing:
        at = next(place for place, param in enumerate(built.params) if param in shared_options())
        built.params[at:at] = listing_options()
    built.examples, built.see = declaration.examples, declaration.see
    built.prints, built.forces, built.in_pipe = declaration.prints, declaration.forces, declaration.in_pipe
    return built


def _with_shared(own: list[Any]) -> list[Any]:
    """Return the parameters, followed by the shared options whose names they do not use."""
    taken = {spelling for param in own for spelling in param.opts}
    shared = [option for option in shared_options() if taken.isdisjoint(option.opts)]
    return [*own, *shared, help_option()]


class Command(HelpPage, TyperCommand):
    """Command with the shared options."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.params = _with_shared(self.params)

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters that Typer parses: not the program after `--`."""
        tail = tail_of(self.params)
        return [param for param in super().get_params(ctx) if param is not tail]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as Typer does, but pass all that follows `--` to the argument for a program, if there is one."""
        tail = tail_of(self.params)
        if tail is None:
            return super().parse_args(ctx, args)
        at = args.index("--") if "--" in args else len(args)
        ctx.params[str(tail.name)] = args[at + 1 :]
        rest = super().parse_args(ctx, args[:at])
        wanted = tail.required or at < len(args)
        if wanted and not args[at + 1 :] and not ctx.resilient_parsing:
            raise UsageError(f"Missing argument `{TAIL}`", hint=f"Usage: `{usage(ctx)}`")
        return rest

    def invoke(self, ctx: Any) -> Any:
        """Return the call. Raises UsageError for columns that the command does not print, or for unknown checks."""
        _check_columns(ctx.command_path, self.prints, ctx.obj)
        _check_sort(ctx.command_path, self.prints, ctx.obj)
        _check_forced(ctx.params.get("force"), self.forces)
        ctx.obj.in_pipe = self.in_pipe
        return super().invoke(ctx)


def _check_forced(given: Sequence[str] | None, forces: Callable[[], Sequence[str]]) -> None:
    """Raise UsageError for a `--force` that is not a safety check of the command, as a typo is not consent."""
    known = forces() if given else ()
    for name in given or ():
        if name not in known:
            hint = suggest.did_you_mean(name, known, f"Use one of {quoted(known)}")
            raise UsageError(f"`{name}` is not a safety check of this command", hint=hint)


def _check_columns(path: str, prints: Sequence[PrintedRecord], options: SharedValues) -> None:
    """Check `--columns` and `--header`, which select tsv in a pipe even where nothing would be printed."""
    if not options.columns and not options.header:
        return
    known = fields_of(prints)
    option = "--columns" if options.columns else "--header"
    if not known:
        raise UsageError(f"`{option}` cannot be used with `{path}`, which prints no records")
    if options.output not in (None, "tsv", "table"):
        raise UsageError(
            f"`{option}` cannot be combined with `-o {options.output}`",
            hint="Columns belong to tsv and tables; JSON has all fields",
        )
    found = {word: field_named(word, prints) for word in options.columns}
    if unknown := [word for word, name in found.items() if name is None]:
        listed = ", ".join(f"`{name}`" for name in unknown)
        what = "is not a column" if len(unknown) == 1 else "are not columns"
        hint = suggest.did_you_mean(unknown[0], known, f"Use any of {', '.join(known)}")
        raise UsageError(f"{listed} {what} of `{path}`", hint=hint)
    options.columns = {name: None if word == name else word for word, name in found.items() if name}
    if options.output is None:
        options.output = "table" if is_terminal(sys.stdout) else "tsv"


def _check_sort(path: str, prints: Sequence[PrintedRecord], options: SharedValues) -> None:
    """Replace the word of `--sort` by the field that it names. Raises UsageError."""
    if options.sort:
        turned, word = options.sort.startswith("-"), options.sort.removeprefix("-")
        name = field_named(word, prints)
        if name is None:
            known = ", ".join(prints[0].columns)
            raise UsageError(f"`{word}` is not a column of `{path}`", hint=f"Sort by any of {known}")
        options.sort = f"-{name}" if turned else name


class Group(HelpPage, TyperCommand):
    """Group that creates a command on first use, and accepts aliases. To Typer it is a command that takes any words."""

    def __init__(self, name: str, help: str, entries: dict[str, GroupEntry], params: Sequence[Any] = ()) -> None:
        words = {"allow_extra_args": True, "allow_interspersed_args": False}
        super().__init__(name, context_settings=words, help=help, add_help_option=False, rich_markup_mode=None)
        self.params = _with_shared(list(params))
        self.entries = entries
        self._loaded: dict[str, Command | Group] = {}

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as Typer does, but raise NoCommand with the help for a group without a command."""
        if not args and not ctx.resilient_parsing:
            raise NoCommand(self.overview(ctx, sys.stderr), ctx.command_path)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Return the call of the command that the words name."""
        if not ctx.args:
            ctx.fail("Missing command.")
        name, command, words = self.resolve_command(ctx, ctx.args)
        return command.invoke(command.make_context(name, words, parent=ctx))

    def overview(self, ctx: Any, stream: TextIO | None) -> str:
        """Return the help for a call without a command."""
        return self.help_text(ctx, stream)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return `COMMAND [OPTIONS]`."""
        return ["COMMAND", "[OPTIONS]"]

    def command_sections(self) -> dict[str, list[tuple[str, str]]]:
        """Return the commands by section of the help, with names padded to align across sections."""
        widest = max((len(name) for name in self.list_commands(None)), default=0)
        sections: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(None):
            entry = self.entries[name]
            sections.setdefault(entry.section, []).append((name.ljust(widest), entry.summary))
        return sections

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for name, entry in self.entries.items() if not entry.hidden]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of this name or alias, created on first use, or None."""
        name = self.canonical(cmd_name)
        if name is None:
            return None
        if name not in self._loaded:
            self._loaded[name] = self.entries[name].load()
        return self._loaded[name]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return name, command and remaining arguments. Raises UsageError that suggests the nearest name."""
        name = self.canonical(args[0])
        if name is None:
            if ctx.resilient_parsing:
                return None, None, args[1:]
            raise self._unknown(ctx, args)
        return name, self.get_command(ctx, name), args[1:]

    def canonical(self, name: str) -> str | None:
        """Return the command's name for a name or an alias, or None."""
        if name in self.entries:
            return name
        for names in ALIASES:
            if name in names and name != ONLY_A_COMMAND:
                return next((other for other in names if other in self.entries), None)
        return None

    def all_names(self) -> list[str]:
        """Return the names and aliases of the commands."""
        aliases = [name for names in ALIASES for name in names if name not in self.entries and self.canonical(name)]
        return [*self.list_commands(None), *aliases]

    def aliases(self, name: str) -> list[str]:
        """Return the other names of a command."""
        names = next((names for names in ALIASES if name in names), ())
        return [other for other in names if other != name and self.canonical(other) == name]

    def _unknown(self, ctx: Any, words: list[str]) -> UsageError:
        path = ctx.command_path
        root, listed = ctx.find_root().command, f"`{path} --help` lists the commands"
        hint = error_report.of_command(root, path.split()[1:], words, listed)
        return UsageError(f"No such command `{path} {words[0]}`", hint=hint)


class NoCommand(Exception):
    """Error for a group without a command, whose text is the help of the group at `path`."""

    def __init__(self, text: str, path: str) -> None:
        super().__init__(text)
        self.path = path
