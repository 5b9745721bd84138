"""Tests of YAML text."""

from enum import StrEnum

import yaml

from kvctl.render import yaml_text


class _State(StrEnum):
    OK = "ok"
    OFF = "off"


def test_member_of_str_enum_is_written_as_its_text():
    text = yaml_text.dump([{"state": _State.OK}, {"state": _State.OFF}])
    assert text == "- state: ok\n- state: 'off'\n"
    assert yaml.safe_load(text) == [{"state": "ok"}, {"state": "off"}]


def test_multi_line_text_beside_members_is_a_literal_block():
    assert yaml_text.dump({"state": _State.OK, "value": "a\nb\n"}) == "state: ok\nvalue: |\n  a\n  b\n"
