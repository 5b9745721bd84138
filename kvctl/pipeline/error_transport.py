"""Errors on their way out of Spark's Python workers: what reaches the driver is a traceback, as text.  [pure]

A KvctlError that leaves a worker says in the last line of its traceback what it is, so that the driver raises the same:

    with crossing():
        ...what runs on a worker...
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kvctl import errors
from kvctl.errors import KvctlError

MARK = "kvctl-error: "
_SCALARS = (str, int, float, bool, type(None))


@contextmanager
def crossing() -> Iterator[None]:
    """Marks a KvctlError that passes; any other exception goes as it is.

    A decorator too, but not of generators: those need it inside.
    """
    try:
        yield
    except KvctlError as error:
        if MARK not in "".join(getattr(error, "__notes__", ())):
            if error.hint:
                error.add_note(f"hint: {error.hint}")
            error.add_note(MARK + json.dumps(_written(error)))
        raise


def recall(text: str) -> KvctlError | None:
    """The error that the last mark in a text tells of; None without one."""
    _, mark, rest = text.rpartition(MARK)
    if not mark:
        return None
    try:
        found: dict[str, Any] = json.JSONDecoder().raw_decode(rest)[0]
        kind = getattr(errors, found.pop("kind"))
        error: KvctlError = kind.__new__(kind)
        KvctlError.__init__(error, found.pop("message"), hint=found.pop("hint"))
    except (ValueError, KeyError, AttributeError, TypeError):
        return None  # cut off, or another version's
    vars(error).update(found)
    return error


def _written(error: KvctlError) -> dict[str, Any]:
    """What makes the error again: the nearest class of the tree, and what of its fields is plain."""
    kind = next(base.__name__ for base in type(error).__mro__ if base is getattr(errors, base.__name__, None))
    fields = {name: value for name, value in vars(error).items() if isinstance(value, _SCALARS)}
    return {"kind": kind, **fields}
