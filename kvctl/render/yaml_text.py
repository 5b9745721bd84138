"""YAML text of plain data that means the same to readers of versions 1.1 and 1.2."""

import re
from enum import StrEnum
from typing import Any

import yaml

from kvctl.render.escapes import DANGEROUS


class _Dumper(yaml.SafeDumper):
    """Dumper in block style without anchors. libyaml's escapes every emoji and fails at lone surrogates."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def dump(value: Any) -> str:
    """Return plain data as YAML, fields in the given order, multi-line strings as literal blocks."""
    text: str = yaml.dump(
        value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False, width=4096
    )
    return text


def dump_short(value: Any) -> str:
    """Return plain data as YAML with collections of plain values on one line: `a: {b: 1, c: [x, y]}`."""
    text: str = yaml.dump(
        value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=None, width=100
    )
    return text


def _string(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None
    # A block whose last lines are empty would end the document, or take the empty lines that follow it.
    if DANGEROUS.search(text.replace("\n", "")) or text == "\n" or text.endswith("\n\n"):
        style = '"'
    elif "\n" in text:
        style = "|"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _string)
# Members of a StrEnum, such as states, are written as their text.
_Dumper.add_multi_representer(StrEnum, lambda dumper, member: _string(dumper, member.value))
# Quote texts that only version 1.2 reads as numbers.
_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"(?:[-+]?(?:\.\d+|\d+(?:\.\d*)?)(?:[eE][-+]?\d+)?|0o[0-7]+)\Z"),
    list("-+.0123456789"),
)
# Quote booleans of version 1.1 that PyYAML does not know.
_Dumper.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"[yYnN]\Z"), list("yYnN"))
