"""Deferred import of the client library's JetStream half: a third of its import time, and not used here.

Import this before the client library: `import nats.js` then binds a module whose code runs on first use.
"""

import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any


def defer(package: str, part: str) -> None:
    """Defer running the code of `package.part`, unless the package has already been imported."""
    home = None if package in sys.modules else find_spec(package)
    spec = home and PathFinder.find_spec(f"{package}.{part}", home.submodule_search_locations)
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    module.__class__ = _Deferred
    sys.modules[spec.name] = module
    setattr(__import__(package), part, module)


class _Deferred(ModuleType):
    __spec__: ModuleSpec

    def __getattr__(self, name: str) -> Any:
        self.__class__ = ModuleType  # type: ignore[assignment]
        assert self.__spec__.loader is not None
        self.__spec__.loader.exec_module(self)
        return getattr(self, name)


defer("nats", "js")
