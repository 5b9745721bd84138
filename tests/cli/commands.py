"""The commands of kvctl, for tests that look at all of them: building their tree takes a second."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from kvctl.cli.app.command import Command
from kvctl.cli.app.main import root
from kvctl.cli.app.manual import walk


@cache
def every_command() -> Mapping[str, tuple[Any, Command]]:
    """Return each command with its Typer context, by its path such as `bucket add`; hidden ones are left out."""
    return {ctx.command_path.removeprefix("kvctl "): (ctx, command) for ctx, command in walk(root())}
