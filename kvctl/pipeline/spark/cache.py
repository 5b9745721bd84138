"""Cache directory of the pipeline on this machine."""

import os
from pathlib import Path

from kvctl.errors import KvctlError

HINT = "Set XDG_CACHE_HOME to a writable folder"


def cache_directory() -> Path:
    """Return `$XDG_CACHE_HOME/kvctl/spark`, or `~/.cache/kvctl/spark`. Raises KvctlError if it is not writable."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    directory = Path(base, "kvctl", "spark")
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise KvctlError(f"Could not create the folder `{directory}`: {error.strerror}", hint=HINT) from None
    if not os.access(directory, os.W_OK | os.X_OK):
        raise KvctlError(f"The folder `{directory}` is not writable", hint=HINT)
    return directory
