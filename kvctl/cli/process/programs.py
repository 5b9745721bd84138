"""Programs that commands run for the user: looked up and rejected as a shell does."""

import os
import shutil

from kvctl.errors import KvctlError

NOT_FOUND, NOT_EXECUTABLE = 127, 126


class CannotRun(KvctlError):
    """Error for a program that cannot be run; exit codes as in a shell: 127 not found, 126 not executable."""

    def __init__(self, message: str, exit_code: int, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.exit_code = exit_code


def find_program(name: str) -> str:
    """Return the program's path, searching PATH if the name has no slash. Raises CannotRun."""
    found = shutil.which(name)
    if found is not None:
        return found
    if shutil.which(name, mode=os.F_OK) is not None or os.path.isdir(name):
        raise CannotRun(f"`{name}` is not executable", NOT_EXECUTABLE)
    raise CannotRun(f"Command `{name}` not found", NOT_FOUND, hint=_hint(name))


def cannot_run(name: str, error: OSError) -> CannotRun:
    """Return the error for a program that the system failed to start."""
    if isinstance(error, FileNotFoundError):
        return CannotRun(f"`{name}` cannot be run: its interpreter is missing", NOT_FOUND)
    return CannotRun(f"`{name}` cannot be run: {error.strerror}", NOT_EXECUTABLE)


def _hint(name: str) -> str | None:
    return "Commands run without a shell; for pipes and variables use `sh -c '...'`" if " " in name else None
