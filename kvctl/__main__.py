"""Entry point of `kvctl` and `python -m kvctl`."""

import gc

GARBAGE = 50_000
"""New objects after which the garbage collector runs: Python's 700 cost bulk reads up to a sixth of their time."""


def main() -> int:
    """Run the command line; Ctrl-C is quiet from the first import on."""
    gc.set_threshold(GARBAGE)
    try:
        from kvctl import deferred

        deferred.defer_modules()
        from kvctl.cli.app import main as command_line  # after what is to be deferred

        return command_line.main()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
