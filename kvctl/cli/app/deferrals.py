"""Modules that Python, Typer and the client library import, and that few commands use.

They are half of the time of a short command. The process of a command defers them; the library imports as usual.
"""

import os
import sys
from typing import Any

from kvctl.deferred import StandIns, base, defer, function, maker, stand_in

COMPILER_FLAG_NAMES = {
    1: "OPTIMIZED", 2: "NEWLOCALS", 4: "VARARGS", 8: "VARKEYWORDS", 16: "NESTED", 32: "GENERATOR", 64: "NOFREE",
    128: "COROUTINE", 256: "ITERABLE_COROUTINE", 512: "ASYNC_GENERATOR",
}  # fmt: skip
"""Flags of code objects, which `inspect` takes from `dis` for constants."""


def defer_rare_modules() -> None:
    """Defer them; to be called before anything else is imported."""
    defer(rare_modules())


def rare_modules() -> dict[str, StandIns]:
    """Return the modules, with values for names that others take from them at import."""
    return {**_for_python(), **_for_typer(), **_for_nats(), **_for_kvctl()}


def _for_python() -> dict[str, StandIns]:
    return {
        # What asyncio imports for TLS, several addresses of a host, child processes and threads.
        **{name: {} for name in ("asyncio.sslproto", "asyncio.staggered")},
        "ssl": {"SSLSocket": stand_in("SSLSocket")},
        "subprocess": {"PIPE": -1, "STDOUT": -2, "DEVNULL": -3},
        "concurrent.futures": {name: name for name in ("FIRST_COMPLETED", "FIRST_EXCEPTION", "ALL_COMPLETED")},
        # What reports errors of background tasks.
        "logging": {"DEBUG": 10, "getLogger": logger},
        "traceback": {
            **{name: stand_in(name) for name in ("FrameSummary", "StackSummary")},
            **_functions("traceback", "extract_stack"),
        },
        # What shows source code in tracebacks, looks into compiled code, and wraps text.
        "ast": {"NodeVisitor": base("ast", "NodeVisitor")},
        "dis": {"COMPILER_FLAG_NAMES": COMPILER_FLAG_NAMES},
        **{name: {} for name in ("linecache", "string", "textwrap", "token", "tokenize")},
    }


def _for_typer() -> dict[str, StandIns]:
    """Return what it imports for help, completion, prompts, suggestions, translations and types of parameters."""
    return {
        "difflib": _functions("difflib", "get_close_matches"),
        "gettext": _functions("gettext", "gettext"),
        "pathlib": {(module, "Path"): stand_in("Path") for module in ("typer.main", "nats.aio.client")},
        "shutil": _functions("shutil", "get_terminal_size"),
        "typer._click.formatting": {"HelpFormatter": maker("typer._click.formatting", "HelpFormatter")},
        "typer._click.shell_completion": {"CompletionItem": maker("typer._click.shell_completion", "CompletionItem")},
        "typer._click.termui": _functions(
            "typer._click.termui", "confirm", "getchar", "launch", "progressbar", "prompt", "secho", "style"
        ),
        "typer.completion": _functions("typer.completion", "get_completion_inspect_parameters"),
        "uuid": {"UUID": stand_in("UUID"), **_functions("uuid", "uuid4")},
        **{name: {} for name in ("locale", "platform", "typer.colors")},
    }


def _for_nats() -> dict[str, StandIns]:
    """Return what it imports for its own messages, errors and credentials, websockets, versions and unused names."""
    return {
        "importlib.metadata": {"version": version},
        "nats.aio.errors": _functions("nats.aio.errors", "ErrInvalidUserCredentials", "ErrStaleConnection"),
        "nats.aio.msg": {"Msg": maker("nats.aio.msg", "Msg")},
        "pkgutil": {"extend_path": extend_path},
        "random": _functions("random", "shuffle"),
        "secrets": _functions("secrets", "token_hex"),
        **{name: {} for name in ("aiohttp", "base64", "ipaddress", "multidict")},
    }


def _for_kvctl() -> dict[str, StandIns]:
    """Return what a command needs for files, errors, warnings and buckets under other names."""
    room, output = "kvctl.cli.app", "kvctl.cli.keys.output"
    return {
        **{f"kvctl.{name}": {} for name in ("atomic_file", "jetstream.streams", "kv.reserved_streams", "topics")},
        f"{room}.error_report": _functions(f"{room}.error_report", "direct", "report"),
        f"{output}.entry_stream": _functions(f"{output}.entry_stream", "show_entries"),
        f"{output}.ttl_notice": _functions(f"{output}.ttl_notice", "warn_of_other_life", "warn_of_return"),
    }


def _functions(module: str, *names: str) -> StandIns:
    return {name: function(module, name) for name in names}


class _Logger:
    """Stand-in for a logger, whose debugging messages nobody reads before `logging` is loaded."""

    def __init__(self, name: str) -> None:
        self._name = name

    def debug(self, *arguments: object, **settings: object) -> None:
        """Drop the message."""

    def __getattr__(self, attribute: str) -> Any:
        return getattr(_real_logger(self._name), attribute)


def logger(name: str | None = None) -> Any:
    """Return a stand-in for the logger of a library that asks for one at import, else the logger."""
    return _Logger(name) if name in ("asyncio", "nats.aio.client") else _real_logger(name)


def extend_path(path: list[str], name: str) -> Any:
    """Return the path of nats-py unchanged, as a substitute for `pkgutil.extend_path`: it has all that kvctl needs."""
    return path if name == "nats" else _real_extend_path(path, name)


_real_logger = function("logging", "getLogger")
_real_extend_path = function("pkgutil", "extend_path")


def version(package: str) -> str:
    """Return a package's version from the name of its directory, as a substitute for `importlib.metadata.version`."""
    prefix, suffix = f"{package.replace('-', '_')}-", ".dist-info"
    for folder in filter(os.path.isdir, sys.path):
        found = [name for name in os.listdir(folder) if name.startswith(prefix) and name.endswith(suffix)]
        if len(found) == 1:
            return found[0].removeprefix(prefix).removesuffix(suffix)
    from importlib.metadata import distribution

    return distribution(package).version
