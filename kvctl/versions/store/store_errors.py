"""Rewrite bucket errors of writes for users of a repository, whose subjects mean nothing to them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kvctl.errors import OutcomeUnknown, PermissionDenied, ServerError
from kvctl.kv.resolve import Binding

FULL = 10077


@contextmanager
def map_store_errors(binding: Binding) -> Iterator[None]:
    """Map errors of a bucket write to messages and hints for repository users."""
    try:
        yield
    except OutcomeUnknown as error:
        raise OutcomeUnknown(
            f"Could not confirm that the write to repository `{binding.bucket}` was stored: {_cause(error)}",
            hint="`kvctl repo log` and `kvctl repo status` show the current state",
        ) from None
    except PermissionDenied as error:
        if error.subject is not None and error.subject.startswith(binding.write_prefix):
            error.hint = f"Ask for permission to publish to `{binding.write_prefix}>`: its subjects vary"
        raise
    except ServerError as error:
        if error.err_code == FULL:
            edit = f"kvctl stream edit {binding.stream} --set max_bytes=BYTES --force foreign-kind"
            error.hint = f"The repository is full: `{edit}` raises the limit; `kvctl repo gc` needs free space, too"
        raise


def _cause(error: OutcomeUnknown) -> str:
    return error.message.partition(": ")[2] or "no answer"
