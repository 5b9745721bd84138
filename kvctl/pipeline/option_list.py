"""The options as the help topic `pipeline` lists them, so that it always says what there is.  [pure]"""

from __future__ import annotations

import re
from textwrap import fill

from kvctl.pipeline.options import OPTIONS, Option, Purpose

WIDTH = 78
HEADING = "## Options\n"
_SECTION = re.compile(rf"(?<=^{HEADING}).*?(?=^## )", re.DOTALL | re.MULTILINE)


def with_option_list(topic: str) -> str:
    """The topic with its section of options as the code has them."""
    listed = f"\n{option_list()}\n"
    return _SECTION.sub(lambda _: listed, topic)


def option_list() -> str:
    """All options by purpose: name, form of the value, what it is for, and the default, if it has one."""
    return "\n".join(_purpose(purpose) for purpose in Purpose)


def _purpose(purpose: Purpose) -> str:
    items = [_item(option) for option in OPTIONS if option.purpose is purpose]
    return f"{purpose}:\n\n{''.join(items)}"


def _item(option: Option) -> str:
    default = f"; {option.default} if left out" if option.default else ""
    text = f"`{option.name}` {option.form}: {option.help[0].lower()}{option.help[1:]}{default}."
    return fill(text, WIDTH, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False) + "\n"
