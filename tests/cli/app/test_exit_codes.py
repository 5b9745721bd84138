"""Every exit code, reached: `kvctl help exit-codes` promises what each means."""

import signal

import pytest

from kvctl.server import run_server
from tests.support.raw import RawClient

pytestmark = pytest.mark.guarantee("commands-12")

NOT_ALLOWED_TO_READ = """
listen: "127.0.0.1:@client@"
jetstream { store_dir: "@store@" }
accounts { APP { jetstream: enabled, users: [
  {user: admin, password: admin}
  {user: writer, password: writer, permissions: {publish: ["$KV.MUTE.>"], subscribe: ["_INBOX.>"]}}
] } }
"""


def test_0_done_also_with_nothing_found(keyed):
    assert keyed("keys", "B").exit_code == 0
    assert keyed("put", "B", "k", "v").exit_code == 0


def test_1_refused_and_failed(keyed):
    assert keyed("put", "B", "k", "v", "--read-only").exit_code == 1
    assert keyed("bucket", "edit", "B", "--replicas", "3").exit_code == 1


def test_2_wrong_usage(keyed):
    assert keyed("put", "B", "k..k", "v").exit_code == 2
    assert keyed("put", "B", "", "v").exit_code == 2
    assert keyed("get", "B", "k", "--sideways").exit_code == 2
    assert keyed("bucket", "delete", "B").exit_code == 2


def test_3_not_found(keyed):
    keyed.put("k")
    assert keyed("get", "B", "k", "--revision", "7").exit_code == 3
    keyed.delete("k")
    assert keyed("get", "B", "k").exit_code == 3
    assert keyed("get", "nowhere", "k").exit_code == 3
    assert keyed("bucket", "ls", "--context", "nowhere").exit_code == 3


def test_4_conflict(keyed):
    keyed.put("k")
    assert keyed("create", "B", "k", "v").exit_code == 4
    assert keyed("update", "B", "k", "v", "7").exit_code == 4
    assert keyed("bucket", "add", "B", "--history", "7").exit_code == 4


def test_5_unreachable_or_not_allowed(run):
    assert run("bucket", "ls", "--server", "nats://127.0.0.1:1").exit_code == 5
    with run_server(config=NOT_ALLOWED_TO_READ, name="strict") as server:
        refused = {"NATS_URL": server.url, "NATS_USER": "writer", "NATS_PASSWORD": "guessed"}
        assert run("bucket", "ls", env=refused).exit_code == 5
        denied = run("get", "MUTE", "k", env={**refused, "NATS_PASSWORD": "writer"})
        assert denied.exit_code == 5
        assert "`$JS.API.DIRECT.GET.KV_MUTE.$KV.MUTE.k`" in denied.err


def test_6_outcome_unknown(run):
    with run_server(config=NOT_ALLOWED_TO_READ, name="mute") as server:
        with RawClient(server.url, user="admin", password="admin") as admin:
            admin.create_bucket("MUTE", no_ack=True)
        writer = {"NATS_URL": server.url, "NATS_USER": "writer", "NATS_PASSWORD": "writer"}
        assert run("put", "MUTE", "k", "v", "--timeout", "3s", env=writer).exit_code == 6


def test_7_partly_done(keyed):
    keyed.put("k")
    keyed.store("no$key")
    assert keyed("delete", "B", "--match", ">", "--yes").exit_code == 7
    assert keyed.value("k") is None


def test_8_changes_pending(keyed):
    keyed.put("k")
    assert keyed("bucket", "copy", "B", f"{keyed.name}-copy").exit_code == 0
    assert keyed("bucket", "diff", "B", f"{keyed.name}-copy", "--exit-code").exit_code == 8


def test_9_a_wait_without_its_condition(keyed):
    assert keyed("wait", "B", "k", "--wait-for", "100ms").exit_code == 9


def test_130_interrupted(keyed, start):
    keyed.put("k")
    watching = start("watch", keyed.name, env=keyed.env())
    watching.stdout.readline()
    watching.send_signal(signal.SIGINT)
    assert watching.wait(60) == 130
    assert watching.stderr.read() == b""
