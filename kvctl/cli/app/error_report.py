"""Error reports: from an exception to a message and an exit code."""

import traceback
from typing import Any

import typer
from typer.core import TyperOption

from kvctl.cli.app import suggestions
from kvctl.cli.app.help_page import argument_usage, spellings, usage
from kvctl.cli.app.session import Interrupted
from kvctl.errors import KvctlError, UsageError
from kvctl.kv import names
from kvctl.render.terminal import OutputClosed, Terminal

_SECRETS = {
    "--password": "Secrets on the command line are visible to others: use --password-file or NATS_PASSWORD",
    "--token": "Secrets on the command line are visible to others: use --token-file or NATS_TOKEN",
}

_ON_WHOLE = {"show": "show", "edit": "edit", "delete": "delete", "purge": "remove"}
_ON_TABLES = {
    "bucket": _ON_WHOLE,
    "stream": _ON_WHOLE,
    "key": {
        "get": "get", "put": "put", "create": "put-if-absent", "update": "put --if-version", "edit": "put --if-version",
        "delete": "remove", "purge": "remove", "keys": "keys", "dump": "entries", "txn": "update", "load": "update",
    },
}  # fmt: skip
"""Group of a command -> its function -> the equivalent command for tables."""
_ON_REPOSITORIES = {
    "bucket": {"show": "show", "delete": "delete", "compact": "gc", "diff": "diff"},
    "stream": {"show": "show", "delete": "delete", "purge": "gc"},
    "key": {"watch": "log", "revert": "revert", "purge": "reset"},
}
"""Group of a command -> its function -> the equivalent for repositories, where a ref is not accepted."""


def report(error: BaseException, terminal: Terminal) -> int:
    """Print the error to stderr and return the exit code."""
    error = _first(error)
    if isinstance(error, OutputClosed):
        return 0
    if isinstance(error, Interrupted | KeyboardInterrupt):
        return getattr(error, "exit_code", 130)
    shown = _as_kvctl_error(error)
    if shown is None:
        shown = _bug(error, terminal)
    terminal.report(shown)
    return shown.exit_code


def direct(error: KvctlError, call: Any) -> None:
    """Name the equivalent command in the hint of a bucket command that was refused on a table or a repository."""
    function = getattr(call, "func", call)
    room, name = function.__module__.removeprefix("kvctl.cli.").partition(".")[0], function.__name__
    noun = "key" if room == "keys" else room
    if error.hint and (instead := _ON_TABLES.get(noun, _ON_TABLES["key"]).get(name)):
        error.hint = error.hint.replace("Use `kvctl table` instead", f"Use `kvctl table {instead}` instead")
    if error.hint and (instead := _on_repository(noun, name, call)):
        error.hint = error.hint.replace("Use `kvctl repo` instead", f"Use `kvctl {instead}` instead")


def _on_repository(noun: str, name: str, call: Any) -> str | None:
    if noun == "key" and name in names.TAKE_REFS:
        return f"{name} {call.keywords.get('bucket', 'NAME')}@main"
    instead = _ON_REPOSITORIES.get(noun, _ON_REPOSITORIES["key"]).get(name)
    return f"repo {instead}" if instead else None


def explain(error: typer.TyperException) -> UsageError:
    """Convert Typer's error to a UsageError with names in backticks and a hint."""
    ctx = getattr(error, "ctx", None)
    shown = f"Usage: `{usage(ctx)}`" if ctx is not None else None
    option = getattr(error, "option_name", None)
    if option is not None and hasattr(error, "possibilities"):
        return UsageError(f"No such option `{option}`", hint=_option_hint(ctx, option))
    if option is not None:
        wrong = "takes no value" if "does not take" in error.message else "needs a value"
        return UsageError(f"Option `{option}` {wrong}", hint=shown)
    param = getattr(error, "param", None)
    if param is not None and "Missing" in type(error).__name__:
        return UsageError(f"Missing {param.param_type_name} `{_name(param)}`", hint=shown)
    if param is not None:
        return UsageError(f"Invalid value for `{_name(param)}`: {_plain(error.message)}", hint=shown)
    return UsageError(_plain(error.format_message()), hint=shown)


def _first(error: BaseException) -> BaseException:
    """Return the first error of a task group, which caused the others."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _as_kvctl_error(error: BaseException) -> KvctlError | None:
    if isinstance(error, KvctlError):
        return error
    if isinstance(error, typer.TyperException):
        return explain(error)
    if isinstance(error, OSError) and error.filename is not None:
        return KvctlError(f"Cannot use `{error.filename}`: {error.strerror}")
    return None


def _bug(error: BaseException, terminal: Terminal) -> KvctlError:
    if terminal.verbose:
        terminal.emit("".join(traceback.format_exception(error)).rstrip())
    hint = None if terminal.verbose else "Run it again with `-v` for the traceback, and please report it"
    return _Bug(f"This is a bug in kvctl: {type(error).__name__}: {error}", hint=hint)


class _Bug(KvctlError, kind="bug"):
    """Error that kvctl does not expect."""


def _name(param: Any) -> str:
    if param.param_type_name == "argument":
        return argument_usage(param).strip("[].")
    return str(max(param.opts, key=len))


def _option_hint(ctx: Any, option: str) -> str:
    if option in _SECRETS:
        return _SECRETS[option]
    path = ctx.command_path if ctx is not None else "kvctl"
    options = () if ctx is None else (param for param in ctx.command.params if isinstance(param, TyperOption))
    shown = sorted(name for param in options if not param.hidden for name in spellings(param))
    listed = f"`{path} --help` lists the options"
    meant = suggestions.of_option(path.partition(" ")[2], option, shown, listed)
    return meant or f"{listed}; put `--` before an argument that starts with a dash"


def _plain(message: str) -> str:
    message = message.removeprefix("Got unexpected extra argument(s) (")
    unexpected = message.removesuffix(")")
    if unexpected != message and "(" not in unexpected:
        return f"Unexpected argument `{unexpected}`"
    return message.rstrip(".").replace("'", "`")
