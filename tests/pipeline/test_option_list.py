"""The list of options in the help topic is that of the code."""

from kvctl.pipeline.option_list import option_list, with_option_list
from kvctl.pipeline.options import OPTIONS
from tests.support.readme import ROOT

TOPIC = (ROOT / "kvctl" / "topics" / "pipeline.md").read_text(encoding="utf-8")


def test_the_topic_lists_the_options_as_they_are():
    """If not: `python -m kvctl.cli.app.manual`."""
    assert with_option_list(TOPIC) == TOPIC
    assert option_list() in TOPIC


def test_every_option_is_listed_with_its_default():
    listed = option_list()
    assert [line.split("`")[1] for line in listed.splitlines() if line.startswith("- ")] == [
        option.name for option in OPTIONS
    ]
    assert "default latest" in listed


def test_outdated_option_list_is_replaced():
    stale = TOPIC.replace("- `mode` latest", "- `mood` latest")
    assert stale != TOPIC
    assert with_option_list(stale) == TOPIC
