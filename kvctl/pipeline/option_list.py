"""List of options for the help topic `pipeline`, generated so that it is always complete. [pure]"""

from __future__ import annotations

import re
from textwrap import fill

from kvctl.pipeline.options import OPTIONS, Option, Purpose

WIDTH = 78
HEADING = "## Options\n"
_SECTION = re.compile(rf"(?<=^{HEADING}).*?(?=^## )", re.DOTALL | re.MULTILINE)


def with_option_list(topic: str) -> str:
    """Return the topic with its section of options generated from the code."""
    listed = f"\n{option_list()}\n"
    return _SECTION.sub(lambda _: listed, topic)


def option_list() -> str:
    """Return all options by purpose: name, form of the value, help, and the default, if any."""
    return "\n".join(_purpose(purpose) for purpose in Purpose)


def _purpose(purpose: Purpose) -> str:
    items = [_item(option) for option in OPTIONS if option.purpose is purpose]
    return f"{purpose}:\n\n{''.join(items)}"


def _item(option: Option) -> str:
    default = f"; default {option.default}" if option.default else ""
    text = f"`{option.name}` {option.form}: {option.help[0].lower()}{option.help[1:]}{default}."
    return fill(text, WIDTH, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False) + "\n"
