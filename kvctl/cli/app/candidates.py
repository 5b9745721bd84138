"""Completion candidates for a word of a command line."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from typer.core import TyperArgument, TyperOption

from kvctl.cli.app.command import Group
from kvctl.cli.app.global_options import Shared, SharedOption
from kvctl.cli.app.help_page import spellings, tail_of
from kvctl.cli.app.typer_adapter import remaining

FILES = "\tfiles"
"""Marker that tells the shell to complete file names."""

Candidate = tuple[str, str]
"""Text to insert, and its description."""

# Never offer text that a shell could run as code or a terminal as a control sequence.
_SAFE = re.compile(r"[-\w./=:@%+,]+\Z")
_PATHS = ("FILE", "DIR", "PATH", "PLAN")


def complete(tree: Group, words: Sequence[str], incomplete: str) -> list[Candidate]:
    """Return candidates for `incomplete` after `words`. Raises LookupError if they name an unknown command."""
    ctx = _walk(tree, list(words))
    option = _option_awaiting_value(ctx, words)
    if option is not None:
        # An option without its value would make the parser reject the words before it.
        return _values(_walk(tree, list(words[:-1])), option, incomplete)
    if incomplete.startswith("-") and "--" not in words:
        return _option_names(ctx, incomplete)
    if isinstance(ctx.command, Group):
        return _commands(ctx.command, incomplete)
    tail = tail_of(ctx.command.params)
    if tail is not None and "--" in words:
        return [(FILES, "")]
    argument = next((param for param in ctx.command.params if param is not tail and _takes_more(ctx, param)), None)
    return [] if argument is None else _values(ctx, argument, incomplete)


def _walk(tree: Group, words: list[str]) -> Any:
    """Return the innermost command that `words` name, with its parsed parameters."""
    ctx = tree.make_context("kvctl", words, obj=Shared(), resilient_parsing=True)
    while isinstance(ctx.command, Group):
        rest = remaining(ctx)
        name, command, arguments = ctx.command.resolve_command(ctx, rest) if rest else (None, None, [])
        if command is None:
            if rest:
                raise LookupError(rest[0])
            return ctx
        ctx = command.make_context(name, arguments, parent=ctx, resilient_parsing=True)
    return ctx


def _option_awaiting_value(ctx: Any, words: Sequence[str]) -> TyperOption | None:
    if not words or "--" in words:
        return None
    options = [param for param in ctx.command.params if isinstance(param, TyperOption) and not param.is_flag]
    return next((option for option in options if words[-1] in option.opts), None)


def _option_names(ctx: Any, incomplete: str) -> list[Candidate]:
    name, equals, value = incomplete.partition("=")
    options = [param for param in ctx.command.params if isinstance(param, TyperOption) and not param.hidden]
    if equals:
        option = next((option for option in options if name in option.opts and not option.is_flag), None)
        found = _values(ctx, option, value) if option is not None else []
        return [(text if text == FILES else f"{name}={text}", help) for text, help in found]
    # Offer a command's own options first, as the many shared ones are rarely wanted.
    options.sort(key=lambda option: isinstance(option, SharedOption))
    return [
        (spelling, option.help or "")
        for option in options
        for spelling in sorted(spellings(option), key=len, reverse=True)
        if spelling.startswith(incomplete)
    ]


def _commands(group: Group, incomplete: str) -> list[Candidate]:
    names = group.list_commands(None)
    return [(name, group.entries[name].summary) for name in names if name.startswith(incomplete)]


def _takes_more(ctx: Any, param: Any) -> bool:
    if not isinstance(param, TyperArgument):
        return False
    return param.nargs == -1 or ctx.params.get(param.name) in (None, (), [])


def _values(ctx: Any, param: TyperArgument | TyperOption, incomplete: str) -> list[Candidate]:
    found = [(item.value, item.help or "") for item in param.shell_complete(ctx, incomplete)]
    words = (param.metavar or "").strip("[].").split("|")
    if not found and any(word in _PATHS for word in words):
        return [(FILES, "")]
    return list(_safe(found))


def _safe(candidates: Iterable[Candidate]) -> Iterable[Candidate]:
    return (candidate for candidate in candidates if _SAFE.match(candidate[0]))
