"""No argument or option of any command becomes a command on the wire."""

import random
from collections.abc import Iterator

import pytest

from kvctl.server import run_server
from tests.cli.commands import every_command
from tests.cli.conftest import run_process
from tests.support.raw import RawClient
from tests.support.wiretap import recording

ATTACK = "x r 0\r\n\r\nPUB evil 4\r\nevil\r\nPUB y"
NASTY = [ATTACK, "a b", "a.b", "a..b", ".a", "*", ">", "a\tb", "a\nb", "a`\n::error::b", ""]
LOCAL = ("pipeline", "server", "quickstart", "completion", "help", "version", "__complete", "lock", "env", "edit")
"""Commands that run other programs, or ask no server."""
ENDLESS = ("watch", "wait", "consume")
SOME = {"REVISION": "1", "SEQ": "1", "VALUE": "v", "FILE": "/dev/null"}


def lines(text: str) -> Iterator[list[str]]:
    """Command lines that have the text in one place."""
    for name, (_, command) in every_command().items():
        path = name.split()
        if path[0] in LOCAL:
            continue
        arguments = [param for param in command.params if param.param_type_name == "argument" and param.required]
        plain = [SOME.get(str(param.metavar).strip("[]."), "B") for param in arguments]
        for at in range(len(arguments)):
            yield [*path, "--", *plain[:at], text, *plain[at + 1 :]]
        for param in command.params if path[-1] not in ENDLESS else ():
            if param.param_type_name == "option" and not param.is_flag and "--server" not in param.opts:
                yield [*path, f"{max(param.opts, key=len)}={text}", "--", *plain]


@pytest.mark.guarantee("commands-8", by="property")
@pytest.mark.oracle
def test_no_command_line_becomes_a_command(own_server, seed, steps):
    chance = random.Random(seed)
    tried = [line for text in NASTY for line in lines(text)]
    assert len(tried) > 5000
    with recording(own_server.port) as tap:
        for line in chance.sample(tried, steps(40)):
            result = run_process(*line, env={"NATS_URL": tap.url, "NATS_TIMEOUT": "1s"}, timeout=8)
            assert b"bug in kvctl" not in result.stderr, (line, result.err)
            assert b"\n::error" not in result.stderr, (line, result.err)
            assert not [subject for subject in tap.check() if subject.startswith(b"evil")], line


@pytest.mark.parametrize("text", [ATTACK, "a b", "a..b", "a\tb"])
@pytest.mark.parametrize(
    "line",
    [
        ["consumer", "add", "S", "c", "--filter", "TEXT"],
        ["consumer", "consume", "S", "--filter", "TEXT"],
        ["consumer", "add", "S", "c", "--set", "filter_subject=TEXT"],
        ["consumer", "next", "TEXT", "c"],
        ["consumer", "next", "S", "TEXT"],
        ["stream", "show", "TEXT"],
        ["stream", "purge", "S", "--subject", "TEXT", "--yes"],
        ["stream", "subjects", "S", "TEXT"],
        ["stream", "get", "S", "--last-for", "TEXT"],
        ["bucket", "ls", "--api-prefix", "TEXT"],
        ["bucket", "ls", "--domain", "TEXT"],
        ["bucket", "ls", "--inbox-prefix", "TEXT"],
        ["mirror", "create", "M", "--origin", "B", "--origin-api", "TEXT"],
        ["mirror", "create", "M", "--origin", "B", "--origin-domain", "TEXT"],
        ["get", "B", "TEXT"],
    ],
    ids=" ".join,
)
def test_a_name_that_is_none_exits_2_and_sends_nothing_of_it(own_stream, line, text):
    result = run_process(*(word.replace("TEXT", text) for word in line), env={"NATS_URL": own_stream}, timeout=30)
    assert result.exit_code == 2, result.err
    assert result.err.count("\nerror:") == 0
    assert "\r" not in result.err
    assert "evil\n" not in result.err


@pytest.fixture(scope="module")
def own_stream():
    """The URL of a server with stream S, which fails where somebody publishes to `evil`."""
    with run_server() as server, RawClient(server.url) as raw, RawClient(server.url) as watching:
        raw.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]})
        raw.create_bucket("B")
        watching._send(b"SUB evil 77\r\n")
        watching.flush()
        yield server.url
        watching._send(b"PING\r\n")
        heard = []
        while (line := watching._lines.readline()) != b"PONG\r\n":
            heard.append(line)
        assert not [line for line in heard if not line.startswith((b"PING", b"INFO"))]
