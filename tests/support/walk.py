"""The files of kvctl that a command passes through: `python -m tests.support.walk get orders NEW.7`.

Files count whose functions are called in kvctl's own process; importing a module alone does not count.
"""

import os
import sys
import threading
from types import FrameType
from typing import Any, NoReturn

from tests.support.readme import ROOT

PACKAGE = f"{ROOT / 'kvctl'}{os.sep}"
_met: dict[str, None] = {}


def main(argv: list[str]) -> NoReturn:
    """Run the command line, then print the files in the order in which they were first called."""
    from kvctl.cli.app.main import main as run

    threading.setprofile(_note)
    sys.setprofile(_note)
    code = run(argv)
    sys.setprofile(None)
    print(f"{len(_met)} files\n" + "\n".join(_met), file=sys.stderr)
    os._exit(code)


def _note(frame: FrameType, event: str, _: Any) -> None:
    name = frame.f_code.co_filename
    if event == "call" and name.startswith(PACKAGE) and not _importing(frame):
        _met.setdefault(name.removeprefix(PACKAGE))


def _importing(frame: FrameType | None) -> bool:
    """Return whether the call only defines something while a module is imported."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith(PACKAGE):
            return True
        frame = frame.f_back
    return False


if __name__ == "__main__":
    main(sys.argv[1:])
