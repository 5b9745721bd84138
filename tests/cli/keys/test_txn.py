"""`kvctl txn`: what it prints, in a pipe, as JSON and on a terminal, and how it fails."""

import json

import pytest

from tests.cli.keyed import Keyed

CHANGE = """
if:
  - {key: app.port, revision: 2}
  - {key: lock, absent: true}
  - {key: mode, value: "on"}
then:
  - {put: app.port, value: "8081"}
  - {create: lock, value: me, ttl: 30s}
  - {delete: app.old}
  - {purge: app.older}
"""


@pytest.fixture
def atomic(server, raw, unique):
    """A bucket that takes transactions, with `mode` on and `app.port` set."""
    name = unique("ATOMIC")
    second = 10**9
    raw.create_bucket(
        name, max_msgs_per_subject=5, allow_atomic=True, allow_msg_ttl=True, subject_delete_marker_ttl=second
    )
    made = Keyed(name, server.url, raw)
    made.put("mode", b"on")
    made.put("app.port", b"80")
    return made


def test_revisions_in_order_in_a_pipe(atomic):
    result = atomic("txn", "B", "-f", "-", stdin=CHANGE.encode())
    assert (result.exit_code, result.stdout) == (0, b"3\n4\n5\n6\n")
    assert (atomic.value("app.port"), atomic.value("lock")) == (b"8081", b"me")


def test_json_and_terminal(atomic, tmp_path, snapshot):
    file = tmp_path / "change.yaml"
    file.write_text(CHANGE)
    assert atomic("txn", "B", "-f", str(file), "--dry-run", "-o", "json") == snapshot
    assert atomic("txn", "B", "-f", str(file), "--dry-run", tty=True) == snapshot
    assert atomic("txn", "B", "-f", str(file), "--dry-run").stdout.splitlines()[0] == b"app.port\tPUT"
    assert atomic.last_revision() == 2
    assert atomic("txn", "B", "-f", str(file), "-o", "json") == snapshot
    file.write_text("then: [{put: mode, value: x}, {delete: app.port}]")
    assert atomic("txn", "B", "-f", str(file), tty=True) == snapshot


def test_what_comes_back_when_a_key_expires_is_said(atomic):
    change = b"{then: [{put: mode, value: brief, ttl: 60s}, {put: new, value: x, ttl: 60s}]}"
    result = atomic("txn", "B", "-f", "-", stdin=change)
    assert (result.exit_code, result.stdout) == (0, b"3\n4\n")
    said = "warning: When `mode` expires, its value at revision 1 reappears, because bucket `{}` keeps history\n"
    assert result.err == said.format(atomic.name)
    result = atomic("update", "B", "app.port", "81", "2", "--ttl", "60s")
    assert (result.exit_code, result.stdout) == (0, b"5\n")
    assert "When `app.port` expires, its value at revision 2 reappears" in result.err


def test_every_failing_condition_is_named_and_nothing_is_written(atomic, snapshot):
    atomic.put("mode", b"off")
    atomic.put("lock", b"\xff")
    atomic.put("app.port", b"81")
    for flags in ((), ("-o", "json"), ("--dry-run",)):
        result = atomic("txn", "B", "-f", "-", *flags, stdin=CHANGE.encode())
        assert result.exit_code == 4
        assert result == snapshot
    assert atomic.last_revision() == 5


def test_what_is_wrong_with_the_file_is_said_before_anything_is_sent(run):
    from tests.cli.conftest import run_process

    nowhere = ("-s", "nats://127.0.0.1:1")
    wrong = run_process("txn", "B", "-f", "-", *nowhere, stdin=b"then:\n  - {put: a, value: 8081}\n")
    assert wrong.exit_code == 2
    assert "standard input:2:" in wrong.err
    assert 'hint: Quote it: `"8081"`' in wrong.err
    many = json.dumps({"then": [{"put": f"k.{number}", "value": ""} for number in range(1001)]}).encode()
    assert "the maximum is 1,000" in run_process("txn", "B", "-f", "-", *nowhere, stdin=many).err
    assert run_process("txn", "b b", "-f", "-", *nowhere, stdin=CHANGE.encode()).exit_code == 2


def test_a_bucket_that_takes_none_says_what_enables_them(keyed):
    change = b"then: [{put: a, value: x}]"
    refused = keyed("txn", "B", "-f", "-", stdin=change)
    assert (refused.exit_code, refused.stdout) == (1, b"")
    command = refused.err.partition("hint: Allow them with `kvctl ")[2].partition("`")[0]
    assert keyed(*command.split()).exit_code == 0
    assert keyed("txn", "B", "-f", "-", stdin=change).stdout == b"1\n"
    assert keyed("txn", "B", "-f", "-", "--read-only", stdin=change).exit_code == 1
