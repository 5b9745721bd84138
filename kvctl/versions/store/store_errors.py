"""What a server refuses or leaves open, said of the repository: the places of its records mean nothing to anybody."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kvctl.errors import OutcomeUnknown, PermissionDenied, ServerError
from kvctl.kv.resolve import Binding

FULL = 10077


@contextmanager
def said_of_the_repository(binding: Binding) -> Iterator[None]:
    """Raises what a write raised, with what helps here in place of what helps with a bucket."""
    try:
        yield
    except OutcomeUnknown as error:
        raise OutcomeUnknown(
            f"It is not known whether the write to repository `{binding.bucket}` was stored: {_cause(error)}",
            hint="`kvctl repo log` and `kvctl repo status` show what is there now",
        ) from None
    except PermissionDenied as error:
        if error.subject is not None and error.subject.startswith(binding.write_prefix):
            error.hint = f"Ask for the permission to publish to `{binding.write_prefix}>`: its subjects come and go"
        raise
    except ServerError as error:
        if error.err_code == FULL:
            edit = f"kvctl stream edit {binding.stream} --set max_bytes=BYTES --force foreign-kind"
            error.hint = f"The repository is full: `{edit}` gives it room, which `kvctl repo gc` needs, too"
        raise


def _cause(error: OutcomeUnknown) -> str:
    return error.message.partition(": ")[2] or "no answer"
