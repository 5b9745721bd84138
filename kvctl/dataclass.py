"""Dataclasses whose methods are compiled on first use: the standard decorator compiles seven for each class at import.

That took a fifth of the time of a short command. `fields`, `replace` and `asdict` of `dataclasses` work on them.
"""

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import MISSING, FrozenInstanceError, fields
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

Names = dict[str, Any]
"""Objects that the code of a method uses."""
Code = Callable[[type, Names], str]
"""Returns the code of a method, without its name."""


def _dataclass(*, slots: bool, frozen: bool = False, kw_only: bool = False, eq: bool = True, repr: bool = True) -> Any:
    """Return a decorator for classes with slots, with these arguments of `dataclasses.dataclass`."""
    assert slots
    compiled: dict[str, Code] = {"__init__": _frozen_init if frozen else _init}
    shared: dict[str, Any] = dict(_FROZEN) if frozen else {}
    if repr:
        shared["__repr__"] = _repr
    if eq:
        compiled["__eq__"] = _eq
    if eq and frozen:
        compiled["__hash__"] = _hash
    elif eq:
        shared["__hash__"] = None

    def decorate(cls: Any) -> Any:
        own = {name for name, value in vars(cls).items() if value is not None}
        built = dataclasses.dataclass(init=False, repr=False, eq=False, slots=True, kw_only=kw_only)(cls)
        methods = shared | {name: _on_first_use(built, name, code) for name, code in compiled.items()}
        for name in methods.keys() - own:
            setattr(built, name, methods[name])
        return built

    return decorate


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    dataclass = _dataclass


def _on_first_use(cls: Any, name: str, code: Code) -> Callable[..., Any]:
    """Return a method that replaces itself by the compiled one."""

    def method(self: Any, *values: Any, **named: Any) -> Any:
        names: Names = {}
        exec(f"def {name}{code(cls, names)}", names)
        names[name].__qualname__ = f"{cls.__qualname__}.{name}"
        setattr(cls, name, names[name])
        return names[name](self, *values, **named)

    return method


def _init(cls: Any, names: Names, assignment: str = " self.{0} = {1}\n") -> str:
    """Return `__init__` with a parameter for each field."""
    parameters: list[str] = []
    named: list[str] = []
    body = ""
    for field in fields(cls):
        name, value = field.name, field.name
        kind = named if field.kw_only is True else parameters
        if field.default_factory is not MISSING:
            names[f"new_{name}"] = field.default_factory
            kind.append(f"{name}=MISSING")
            value = f"new_{name}() if {name} is MISSING else {name}"
        elif field.default is not MISSING:
            names[f"default_{name}"] = field.default
            kind.append(f"{name}=default_{name}")
        else:
            kind.append(name)
        body += assignment.format(name, value)
    if hasattr(cls, "__post_init__"):
        body += " self.__post_init__()\n"
    names["MISSING"] = MISSING
    return _function([*parameters, *(("*", *named) if named else ())], body or " pass")


def _frozen_init(cls: Any, names: Names) -> str:
    names["set_field"] = object.__setattr__
    return _init(cls, names, " set_field(self, {0!r}, {1})\n")


def _eq(cls: Any, names: Names) -> str:
    same = f"{_compared(cls, 'self')} == {_compared(cls, 'other')}"
    return _function(["other"], f" return {same} if other.__class__ is self.__class__ else NotImplemented")


def _hash(cls: Any, names: Names) -> str:
    return _function([], f" return hash({_compared(cls, 'self')})")


def _function(parameters: Iterable[str], body: str) -> str:
    return f"({', '.join(['self', *parameters])}):\n{body}"


def _compared(cls: Any, name: str) -> str:
    return f"({''.join(f'{name}.{field.name},' for field in fields(cls) if field.compare)})"


@recursive_repr()
def _repr(self: Any) -> str:
    shown = ", ".join(f"{field.name}={getattr(self, field.name)!r}" for field in fields(self) if field.repr)
    return f"{type(self).__qualname__}({shown})"


def _refuse_set(self: Any, name: str, value: object) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_delete(self: Any, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in fields(self)]


def _set_state(self: Any, state: Iterable[Any]) -> None:
    for field, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)


_FROZEN = {
    "__setattr__": _refuse_set, "__delattr__": _refuse_delete, "__getstate__": _state, "__setstate__": _set_state,
}  # fmt: skip
"""Methods of every frozen class, the latter two for pickle and copy."""
