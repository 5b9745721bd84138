"""Entry point of `kvctl` and `python -m kvctl`."""


def main() -> int:
    """Run the command line; Ctrl-C is quiet from the first import on."""
    try:
        from kvctl.cli.app.deferrals import defer_rare_modules

        defer_rare_modules()
        from kvctl.cli.app.main import main as run

        return run()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
