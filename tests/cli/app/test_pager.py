"""Long texts on a terminal: which pager shows them, and that none of them is lost."""

import signal

import pytest

from kvctl import topics
from tests.cli.conftest import Run
from tests.cli.dialogue import Dialogue

TOPIC = topics.page("topologies")
COUNT = f"{len(TOPIC.splitlines())} lines"


def shown(run: Run, *args: str, tty: bool = True, **env: str) -> str:
    """What `kvctl ARGS` prints with these variables."""
    result = run(*(args or ("help", "topologies")), tty=tty, env=env)
    assert result.exit_code == 0, result.err
    return result.out.replace("\r", "")


def test_long_topics_are_paged_on_a_terminal(run):
    assert shown(run, PAGER="wc -l | sed 's/$/ lines/'").strip() == COUNT


def test_long_help_is_paged(run):
    assert shown(run, "bucket", "add", "--help", PAGER="echo paged; cat >/dev/null") == "paged\n"
    assert shown(run, "help", "bucket", "add", PAGER="echo paged; cat >/dev/null") == "paged\n"


@pytest.mark.parametrize("args", [("--version",), ("help", "version")], ids=" ".join)
def test_short_texts_are_not(run, args):
    assert "paged" not in shown(run, *args, PAGER="echo paged")


def test_pipes_have_none(run):
    assert shown(run, tty=False, PAGER="echo paged") == TOPIC


def test_it_can_be_switched_off(run):
    assert shown(run, PAGER="cat") == TOPIC


def test_pager_that_stops_reading_ends_quietly(run):
    assert shown(run, PAGER="head -1") == TOPIC.splitlines()[0] + "\n"


def test_settings_of_less_are_those_of_git_unless_set(run):
    assert shown(run, PAGER="echo $LESS; cat >/dev/null") == "FRX\n"
    assert shown(run, PAGER="echo $LESS; cat >/dev/null", LESS="S") == "S\n"


def test_ctrl_c_is_for_the_pager():
    pager = "trap '' INT; cat >/dev/null; echo shown; read -r line <&2"
    with Dialogue("help", "topologies", PAGER=pager) as dialogue:
        dialogue.hear("shown")
        dialogue.process.send_signal(signal.SIGINT)
        dialogue.say("")
        assert dialogue.end() == 0
