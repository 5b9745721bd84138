"""Transport of errors out of Spark's Python workers, from which only a traceback reaches the driver, as text. [pure]

A KvctlError that leaves a worker is encoded in the last line of its traceback, so that the driver raises it again:

    with crossing():
        ...what runs on a worker...
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kvctl import errors
from kvctl.errors import KvctlError, RequestTimeout

PATIENCE = "The server is busy: wait longer with `--timeout 60s`, in a script with the option `timeout` of `nats-kv`"
MARK = "kvctl-error: "


@contextmanager
def crossing() -> Iterator[None]:
    """Mark a KvctlError that passes; other exceptions pass unchanged.

    Also a decorator, but not for generators: those need it inside.
    """
    try:
        yield
    except KvctlError as error:
        if MARK not in "".join(getattr(error, "__notes__", ())):
            if isinstance(error, RequestTimeout):
                error.hint = error.hint or PATIENCE
            if error.hint:
                error.add_note(f"hint: {_utf8(error.hint)}")
            error.add_note(MARK + json.dumps(_written(error)))
            linked: BaseException | None = error
            while linked is not None:  # the driver waits forever for a traceback that is not UTF-8
                linked.args = tuple(_utf8(part) if isinstance(part, str) else part for part in linked.args)
                linked = linked.__cause__ or linked.__context__
        raise


def recall(text: str) -> KvctlError | None:
    """Return the error that the last mark in a text encodes; None without one."""
    try:
        found: dict[str, Any] = json.JSONDecoder().raw_decode(text.rpartition(MARK)[2])[0]
        kind = getattr(errors, found.pop("kind"))
        error: KvctlError = kind.__new__(kind)
        KvctlError.__init__(error, found.pop("message"), hint=found.pop("hint"))
    except (ValueError, KeyError, AttributeError, TypeError):
        return None  # none, truncated, or of another version
    vars(error).update(found)
    return error


def _written(error: KvctlError) -> dict[str, Any]:
    """Return the data to rebuild the error: the nearest class of the tree, and its plain fields."""
    kind = next(base.__name__ for base in type(error).__mro__ if base is getattr(errors, base.__name__, None))
    fields = {name: value for name, value in vars(error).items() if isinstance(value, str | int | float | None)}
    return {"kind": kind, **fields}


def _utf8(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()
