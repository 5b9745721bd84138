"""Modules that Python, Typer and the client library import, and that few commands use.

They are half of the time of a short command. The process of a command defers them; the library imports as usual.
"""

import os
import sys

from kvctl.deferred import base, defer, function, stand_in


def defer_rare_modules() -> None:
    """Defer them; to be called before anything else is imported."""
    defer({
        # What asyncio imports for TLS, child processes and threads.
        "asyncio.sslproto": {},
        "ssl": {"SSLSocket": stand_in("SSLSocket")},
        "subprocess": {"PIPE": -1, "STDOUT": -2, "DEVNULL": -3},
        "concurrent.futures": {name: name for name in ("FIRST_COMPLETED", "FIRST_EXCEPTION", "ALL_COMPLETED")},
        # What shows source code in tracebacks, and wraps text.
        "ast": {"NodeVisitor": base("ast", "NodeVisitor")},
        **{name: {} for name in ("linecache", "textwrap", "token", "tokenize")},
        # What Typer imports for completion, suggestions, translations and types that no parameter has.
        "difflib": _functions("difflib", "get_close_matches"),
        "gettext": _functions("gettext", "gettext"),
        "locale": {},
        "platform": {},
        "shutil": _functions("shutil", "get_terminal_size"),
        "typer.completion": _functions("typer.completion", "get_completion_inspect_parameters"),
        "uuid": {"UUID": stand_in("UUID"), **_functions("uuid", "uuid4")},
        # What the client library imports for websockets, its own version, unused names and addresses of other servers.
        "importlib.metadata": {"version": version},
        "aiohttp": {},
        "multidict": {},
        "ipaddress": {},
        "random": _functions("random", "shuffle"),
        "secrets": _functions("secrets", "token_hex"),
    })  # fmt: skip


def _functions(module: str, *names: str) -> dict[str, object]:
    return {name: function(module, name) for name in names}


def version(package: str) -> str:
    """Return a package's version from the name of its directory, as a substitute for `importlib.metadata.version`."""
    prefix, suffix = f"{package.replace('-', '_')}-", ".dist-info"
    for folder in filter(os.path.isdir, sys.path):
        found = [name for name in os.listdir(folder) if name.startswith(prefix) and name.endswith(suffix)]
        if len(found) == 1:
            return found[0].removeprefix(prefix).removesuffix(suffix)
    from importlib.metadata import distribution

    return distribution(package).version
