"""`kvctl doctor`, as people and scripts use it."""

import json

from kvctl.server import run_server
from tests.support.raw import RawClient


def test_a_development_server_has_no_error(run, own_server, snapshot):
    assert run("doctor", "-s", own_server.url, tty=True) == snapshot
    strict = run("doctor", "--strict", "-s", own_server.url, "-o", "json")
    assert (strict.exit_code, strict.err) == (0, "")
    (note,) = json.loads(strict.out)
    assert list(note) == ["severity", "check", "subject", "evidence", "remedy"]
    assert note["severity"] == "note"


def test_warnings_fail_only_when_strict(run, own_server):
    with RawClient(own_server.url) as raw:
        raw.create_bucket("OLD", allow_direct=False)
    assert run("doctor", "-s", own_server.url).exit_code == 0
    strict = run("doctor", "--strict", "-o", "tsv", "-s", own_server.url)
    assert strict.exit_code == 1
    assert strict.out.splitlines()[0].split("\t")[:3] == ["warning", "no-direct-get", "OLD"]


def test_fixes_name_the_given_context(run, own_server, tmp_path):
    env = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert run("context", "add", "edge", "--server", own_server.url, env=env).exit_code == 0
    with RawClient(own_server.url) as raw:
        raw.create_bucket("OLD", allow_direct=False)
    checked = run("doctor", "--context", "edge", "-o", "json", env=env)
    (finding,) = [item for item in json.loads(checked.out) if item["check"] == "no-direct-get"]
    assert finding["remedy"] == "`kvctl --context edge stream edit KV_OLD --set allow_direct=true`"


def test_errors_fail_and_stand_first(run, own_server, snapshot):
    with RawClient(own_server.url) as raw:
        raw.create_bucket("ORDERS")
        filtered = {"name": "KV_ORDERS", "filter_subject": "$KV.ORDERS.a"}
        for name, mirror in (("SOME", filtered), ("LOST", {"name": "KV_NONE"})):
            assert "error" not in raw.api(
                f"STREAM.CREATE.{name}", {"name": name, "mirror": mirror, "max_msgs_per_subject": 1}
            )
        raw.create_bucket("FULL", max_msgs=10, discard="old")
    assert run("doctor", "-s", own_server.url, tty=True) == snapshot
    report = run("doctor", "-s", own_server.url, "--format", "markdown")
    assert (report.exit_code, report.out.splitlines()[0][:4]) == (1, "### ")
    assert "| error | LOST | missing-origin | <code>NONE</code> does not exist |" in report.out


def test_without_a_server_or_without_jetstream(run, own_server):
    assert run("doctor", "-s", "nats://127.0.0.1:1").exit_code == 5
    with run_server(name="plain", config='listen: "127.0.0.1:@client@"') as server:
        shown = run("doctor", "-s", server.url, "-o", "json")
        assert shown.exit_code == 1
        assert json.loads(shown.out)[0]["check"] == "jetstream"
