"""The table of settings: everything that lists settings follows from its rows."""

from collections.abc import Iterator
from dataclasses import fields

import pytest

from kvctl.cli.app.main import root
from kvctl.kv.config import BucketConfig
from kvctl.kv.settings import FIELDS, SETTINGS, Form, Resource, settings_of
from kvctl.topology.model.file import SECTIONS
from kvctl.topology.model.origins import Aggregate, Mirror

COMMANDS: dict[Resource, list[tuple[str, str]]] = {
    "bucket": [("bucket", "add"), ("bucket", "edit")],
    "mirror": [("mirror", "create")],
    "aggregate": [("aggregate", "create")],
    "table": [("table", "create"), ("table", "edit")],
    "repository": [("repo", "init")],
}


def options(*words: str) -> Iterator[str]:
    """Yield the spellings of a command's options."""
    command = root()
    for word in words:
        command = command.get_command(None, word)
    for param in command.params:
        yield from (*param.opts, *param.secondary_opts)


@pytest.mark.parametrize("resource", COMMANDS)
def test_every_setting_of_a_resource_is_an_option_of_its_commands(resource):
    expected = {f"--{row.option_name}" for row in SETTINGS.values() if resource in row.of}
    for words in COMMANDS[resource]:
        assert expected <= set(options(*words)), words


def test_options_of_other_resources_are_not_offered():
    assert {"--atomic", "--republish", "--marker-ttl"}.isdisjoint(options("mirror", "create"))
    assert {"--history", "--atomic"}.isdisjoint(options("table", "create"))


def test_edits_can_switch_a_setting_off():
    switches = {f"--no-{row.option_name}" for row in SETTINGS.values() if row.form is Form.FLAG and not row.part_of}
    assert switches <= set(options("bucket", "edit"))
    assert switches.isdisjoint(options("bucket", "add"))


@pytest.mark.parametrize("section", SECTIONS)
def test_every_setting_of_a_resource_is_a_field_of_a_topology_file(section):
    resource = section.removesuffix("s")
    assert {row.name for row in SETTINGS.values() if resource in row.of} <= set(SECTIONS[section].fields)


@pytest.mark.parametrize(
    ("model", "resource"), [(BucketConfig, "bucket"), (Mirror, "mirror"), (Aggregate, "aggregate")]
)
def test_every_setting_of_a_resource_is_a_field_of_its_class(model, resource):
    assert {item.name for item in fields(model)} & set(FIELDS) == set(settings_of(resource))
