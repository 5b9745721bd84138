"""Plain data as YAML text that readers of version 1.1 and 1.2 understand alike."""

import re
from typing import Any

import yaml

from kvctl.render.escapes import DANGEROUS


class _Dumper(yaml.SafeDumper):
    """Block style, no anchors. Not libyaml's: that one escapes every emoji and fails at lone surrogates."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def dump(value: Any) -> str:
    """YAML text of plain data, fields in the order given, strings over several lines as literal blocks."""
    text: str = yaml.dump(
        value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False, width=4096
    )
    return text


def dump_short(value: Any) -> str:
    """The same with what holds plain values only on one line, as far as that goes: `a: {b: 1, c: [x, y]}`."""
    text: str = yaml.dump(
        value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=None, width=100
    )
    return text


def _string(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None
    if DANGEROUS.search(text.replace("\n", "")):
        style = '"'
    elif "\n" in text:
        style = "|"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _string)
# What version 1.2 alone reads as a number; quoted, it is text to both.
_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"(?:[-+]?(?:\.\d+|\d+(?:\.\d*)?)(?:[eE][-+]?\d+)?|0o[0-7]+)\Z"),
    list("-+.0123456789"),
)
# What version 1.1 calls a boolean and PyYAML forgot.
_Dumper.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"[yYnN]\Z"), list("yYnN"))
