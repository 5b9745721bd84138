"""Modules whose code runs, and patterns that are compiled, on first use: a command does not wait for the others."""

import re
import sys
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec, PathFinder
from threading import RLock
from types import ModuleType
from typing import Any, AnyStr, cast

StandIns = Mapping[Any, Any]
"""Values for names that others take from the module by `from ... import`, until its code runs.

A pair of a module and a name is for that module alone, which gets what it stands for when the code runs.
"""


def defer(modules: Mapping[str, StandIns]) -> None:
    """Let later imports of these modules bind them at once, and run their code when an attribute is first used."""
    sys.meta_path.insert(0, _Finder(modules))


def function(module: str, name: str) -> Any:
    """Return a stand-in for a function, which imports it when called."""

    def call(*arguments: Any, **settings: Any) -> Any:
        _run(sys.modules[module])
        return getattr(sys.modules[module], name)(*arguments, **settings)

    return call


def stand_in(name: str) -> type:
    """Return a stand-in for a class that has no instances before the module's code runs."""
    return type(name, (), {})


def maker(module: str, name: str) -> type:
    """Return a stand-in for a class, which imports it when called."""
    make = function(module, name)
    return type(name, (), {"__new__": lambda _, *arguments, **settings: make(*arguments, **settings)})


def base(module: str, name: str) -> type:
    """Return a stand-in for a class with subclasses, whose methods they find on first use."""

    def method(self: Any, attribute: str) -> Any:
        _run(sys.modules[module])
        return getattr(getattr(sys.modules[module], name), attribute).__get__(self)

    return type(name, (), {"__getattr__": method})


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


def is_deferred(module: ModuleType) -> bool:
    """Return True if the code of the module has not run yet."""
    return isinstance(module, _Deferred)


def when_run(module: ModuleType, action: Callable[[], object]) -> None:
    """Call a function when the code of the module has run, which may be now."""
    if isinstance(module, _Deferred) and module.__spec__ is not None:
        module.__spec__.loader_state.actions.append(action)
    else:
        action()


class _Finder:
    def __init__(self, modules: Mapping[str, StandIns]) -> None:
        self._modules = modules

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name in self._modules else None
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._modules[name])  # type: ignore[assignment]
        return spec


class _Loader:
    def __init__(self, loader: Any, values: StandIns) -> None:
        self._loader = loader
        self._values = values

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        assert spec is not None
        spec.loader = module.__loader__ = self._loader
        spec.loader_state = _State(self._values)
        vars(module).update((name, value) for name, value in self._values.items() if not _is_pair(name))
        module.__class__ = _Deferred


def _is_pair(key: object) -> bool:
    return isinstance(key, tuple)


class _State:
    def __init__(self, values: StandIns) -> None:
        self.values = values
        self.lock = RLock()
        self.waits = True
        self.actions: list[Callable[[], object]] = []


class _Deferred(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name != "__path__":  # which an import looks for
            spec, pair = self.__spec__, (sys._getframe(1).f_globals.get("__name__"), name)
            if spec is not None and pair in spec.loader_state.values:
                return spec.loader_state.values[pair]
            _run(self)
        return ModuleType.__getattribute__(self, name)


def _run(module: ModuleType) -> None:
    """Run the code of a deferred module, unless it has run; other threads wait until it is complete."""
    spec = module.__spec__
    if type(module) is not _Deferred or spec is None or spec.loader is None:
        return
    with spec.loader_state.lock:
        if not spec.loader_state.waits:
            return
        spec.loader_state.waits = False
        try:
            spec.loader.exec_module(module)
        except BaseException:
            spec.loader_state.waits = True
            raise
        module.__class__ = ModuleType  # type: ignore[assignment]
        for importer, name in filter(_is_pair, spec.loader_state.values):
            if importer in sys.modules:
                setattr(sys.modules[importer], name, getattr(module, name))
        for action in spec.loader_state.actions:
            action()
