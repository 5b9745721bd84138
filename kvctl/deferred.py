"""Deferred modules: while the command line runs, a module's code runs when one of its attributes is first used.

So imports stand at the top of every file, and a command does not wait for what it does not use. This is what
`importlib.util.LazyLoader` does, but other threads wait for the whole module, and importing it twice does not run it.
PEP 810 will replace this file by `lazy import`.
"""

import re
import sys
from importlib.machinery import ModuleSpec, PathFinder
from threading import RLock
from types import ModuleType
from typing import Any, AnyStr, cast

OURS = "kvctl."
"""Prefix of our own modules, which are all deferred: `from kvctl.kv import catalog` runs nothing of `catalog`."""
OTHERS = frozenset(
    (
        "aiohttp asyncio asyncio.sslproto asyncio.staggered base64 bz2 calendar concurrent.futures csv "
        "email.base64mime email.header email.quoprimime getpass hashlib importlib.resources ipaddress linecache "
        "locale logging lzma multidict nats.js shellingham ssl subprocess tempfile textwrap token tokenize "
        "typer.colors"
    ).split()
)
"""Modules that Python, Typer and the client library import and rarely use: a third of the time of `kvctl get`."""


def defer_modules() -> None:
    """Defer the modules that are imported from now on."""
    sys.meta_path.insert(0, _Finder())


class _Finder:
    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if not name.startswith(OURS) and name not in OTHERS:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)  # type: ignore[assignment]
        return spec


class _Loader:
    """Loader that leaves a module empty; its own loader runs the code later."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        assert spec is not None
        spec.loader = module.__loader__ = self._loader
        spec.loader_state = _State()
        module.__class__ = DeferredModule


class _State:
    def __init__(self) -> None:
        self.lock = RLock()
        self.running = False


class DeferredModule(ModuleType):
    """Module whose code has not run to its end."""

    def __getattr__(self, name: str) -> Any:
        if name != "__path__":  # which an import looks for
            run(self)
        return ModuleType.__getattribute__(self, name)


def run(module: ModuleType) -> None:
    """Run the code of a deferred module, unless it has run; other threads wait until it is complete."""
    spec = module.__spec__
    if type(module) is not DeferredModule or spec is None or spec.loader is None:
        return
    state = spec.loader_state
    with state.lock:
        if state.running or type(module) is not DeferredModule:
            return
        state.running = True
        try:
            spec.loader.exec_module(module)
            module.__class__ = ModuleType  # type: ignore[assignment]
        finally:
            state.running = False


def pattern(text: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Return a regular expression that is compiled when a method is first used."""
    return cast("re.Pattern[AnyStr]", _Pattern(text, flags))


class _Pattern:
    def __init__(self, text: Any, flags: int) -> None:
        self._source = text, flags

    def __getattr__(self, name: str) -> Any:
        value = getattr(re.compile(*self._source), name)
        setattr(self, name, value)
        return value
