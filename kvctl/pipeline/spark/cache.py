"""Cache directory of the pipeline on this machine."""

import os
from pathlib import Path


def cache_directory(otherwise: Path) -> Path:
    """Return `$XDG_CACHE_HOME/kvctl/spark`, or `~/.cache/kvctl/spark`; `otherwise` if that is not writable."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    directory = Path(base, "kvctl", "spark")
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError:
        return otherwise
    return directory if os.access(directory, os.W_OK | os.X_OK) else otherwise
