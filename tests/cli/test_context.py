"""`kvctl context`: context files, their display, and connection tests."""

import json
import shlex
import socket
import stat
import time
from pathlib import Path

import pytest

from kvctl.server import run_server

SECRET = "s3cret-n0body-sees"
VERSION = {r"version \d+\.\d+\.\d+": "version N"}


@pytest.fixture
def context(run):
    """`kvctl context ...`"""
    return lambda *args, **settings: run("context", *args, **settings)


@pytest.fixture
def files(home):
    """Folder of the context files."""
    return home / ".config" / "nats" / "context"


@pytest.fixture
def prod(context, tmp_path):
    """A context of that name, with a password."""
    (tmp_path / "password").write_text(SECRET + "\n")
    urls, password = "nats://n1:4222,nats://n2:4222", str(tmp_path / "password")
    options = ("--user", "ann", "--password-file", password, "--domain", "hub", "--select")
    made = context("add", "prod", "-s", urls, *options)
    assert made.exit_code == 0, made.err
    return "prod"


def test_add_writes_the_nats_commands_file(prod, files):
    path = files / "prod.json"
    assert json.loads(path.read_text()) == {
        "url": "nats://n1:4222,nats://n2:4222",
        "user": "ann",
        "password": SECRET,
        "jetstream_domain": "hub",
    }
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert (files.parent / "context.txt").read_text() == "prod"


@pytest.mark.guarantee("commands-14")
@pytest.mark.parametrize("output", ["table", "json", "tsv", "yaml"])
@pytest.mark.parametrize("command", ["show", "ls"])
def test_context_secrets_are_never_shown(context, prod, command, output):
    shown = context(command, "-o", output, "-v")
    assert shown.exit_code == 0
    assert SECRET not in shown.out + shown.err


def test_context_show_and_ls_on_a_terminal(context, prod, snapshot):
    context("add", "local", "--url", "nats://eve:pw@127.0.0.1:4222", "--description", "on this machine")
    assert context("show", tty=True) == snapshot
    assert context("ls", tty=True) == snapshot
    assert context("ls", "-o", "json") == snapshot
    assert context("show", "local", "-o", "json") == snapshot


def test_add_of_existing_context_succeeds_only_with_same_settings(context, prod, files, snapshot):
    before = (files / "prod.json").read_bytes()
    password = files / "password"
    password.write_text(SECRET)
    same = ("-s", "nats://n1:4222,nats://n2:4222", "--user", "ann", "--domain", "hub")
    again = context("add", "prod", *same, "--password-file", str(password), tty=True)
    assert again == snapshot
    piped = context("add", "prod", *same, "--password-file", str(password))
    assert (piped.exit_code, piped.out) == (0, "Context `prod` already exists with these settings\n")
    password.write_text("another")
    other = context("add", "prod", "-s", "nats://n3", "--user", "ann", "--password-file", str(password))
    assert other == snapshot
    assert (files / "prod.json").read_bytes() == before


def test_add_from_another_context(context, prod):
    context("add", "edge", "--context", "prod", "--domain", "edge", "--read-only")
    shown = json.loads(context("show", "edge", "-o", "json").out)
    assert (shown["user"], shown["password"], shown["domain"], shown["read_only"]) == ("ann", "set", "edge", True)


def test_add_stores_absolute_file_paths(context, files):
    context("add", "here", "--creds", "my.creds", "--tls-ca", "ca.pem")
    written = json.loads((files / "here.json").read_text())
    assert [written["creds"], written["ca"]] == [str(Path("my.creds").absolute()), str(Path("ca.pem").absolute())]


def test_edit_changes_only_the_given_fields(context, prod, files, snapshot):
    path = files / "prod.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "color_scheme": "blue", "later": [1]}))
    edited = context("edit", "prod", "--domain", "leaf", "--clear", "user", "--clear", "password", tty=True)
    assert edited == snapshot
    assert json.loads(path.read_text()) == {
        "url": "nats://n1:4222,nats://n2:4222",
        "user": "",
        "password": "",
        "jetstream_domain": "leaf",
        "color_scheme": "blue",
        "later": [1],
    }
    assert context("edit", "prod", "--domain", "leaf", tty=True) == snapshot


def test_edit_reports_changed_secret_without_its_value(context, prod, tmp_path):
    (tmp_path / "password").write_text("another")
    edited = context("edit", "prod", "--password-file", str(tmp_path / "password"))
    assert edited.out == "password\tset\tchanged\n"


ERRORS = """
    edit prod --creds /x.creds
    edit prod --clear nonsense
    edit prod --clear user
    edit prod --domain ''
    edit prod --domain 'a b'
    show pord
    show ../prod
    select pord
    delete prod
    delete pord --yes
    add a/b -s nats://x
    add x --password p
    add x -s http://u:secret@x
    test prod --tls-ca /dev/null
    test prod --tls-cert /nowhere.pem
"""


def test_context_usage_errors(context, prod, files, snapshot):
    before, shown = (files / "prod.json").read_bytes(), []
    for line in ERRORS.split("\n")[1:-1]:
        result = context(*shlex.split(line))
        shown.append(f"{line.strip()}: {result.exit_code}, {' '.join(f'{result.out}{result.err}'.split())}")
        assert (files / "prod.json").read_bytes() == before
    assert "\n".join(shown) == snapshot


def test_delete_asks_for_confirmation_on_a_terminal(context, prod, files, snapshot):
    assert context("rm", "prod", tty=True, stdin=b"n\n") == snapshot
    assert (files / "prod.json").exists()
    assert context("rm", "prod", tty=True, stdin=b"y\n") == snapshot
    assert not (files / "prod.json").exists()
    assert not (files.parent / "context.txt").exists()


def test_damaged_context_file_affects_only_that_context(context, prod, files, snapshot):
    (files / "bad.json").write_text("{")
    assert context("ls") == snapshot
    assert context("show", "bad") == snapshot


def test_show_warns_of_readable_context_file(context, prod, files):
    (files / "prod.json").chmod(0o644)
    assert context("show", "prod").err.startswith("warning: ")
    assert context("show").err.count("warning: ") == 1


def test_a_context_is_used_by_name_and_by_selection(run, context, server):
    context("add", "tests", "-s", server.url)
    named = context("test", "tests", "-o", "json")
    assert json.loads(named.out)["name"] == "tests"
    assert context("test", "-o", "json", env={"NATS_CONTEXT": "tests"}).exit_code == 0
    context("select", "tests")
    selected = json.loads(context("test", "-o", "json").out)
    assert (selected["url_from"], selected["usable"]) == ("selected context `tests`", True)


class TestTest:
    NARROW = """
        listen: 127.0.0.1:@client@
        server_name: narrow
        jetstream { store_dir: "@store@", max_mem: 64MB, max_file: 1GB }
        authorization { users: [ { user: ann, password: p, permissions: {
            publish: ["$JS.API.STREAM.INFO.KV_ORDERS", "$JS.API.DIRECT.GET.KV_ORDERS.>"], subscribe: "_INBOX.>" } } ] }
    """

    def test_report_with_all_permissions(self, context, own_server, snapshot):
        assert context("test", "-s", own_server.url, tty=True).masked(VERSION) == snapshot

    def test_json_report_contains_usage_and_limits(self, context, accounts):
        origin = accounts.contexts["origin"]
        environment = {"NATS_USER": "origin", "NATS_PASSWORD": "origin", "NATS_URL": origin.url}
        found = json.loads(context("test", "-o", "json", env=environment).out)
        assert found["usable"] is True
        assert found["server"]["name"] == "accounts"
        assert 0 < found["rtt"] < 1
        assert {"memory", "storage", "streams", "consumers", "limits"} <= set(found["jetstream"])
        assert {item["allowed"] for item in found["permissions"]} == {True}

    def test_report_names_denied_subjects(self, context, snapshot):
        with run_server(config=self.NARROW) as server:
            ann = {"NATS_USER": "ann", "NATS_PASSWORD": "p", "NATS_URL": server.url}
            assert context("test", "--bucket", "ORDERS", env=ann, tty=True).masked(VERSION) == snapshot
            assert context("test", env=ann, tty=True).masked(VERSION) == snapshot

    @pytest.mark.parametrize("output", ["table", "json"])
    def test_unreachable_server(self, context, output, snapshot):
        with run_server() as server:
            url = server.url
        assert context("test", "-s", url, "-o", output) == snapshot

    def test_server_without_jetstream(self, context, snapshot):
        with run_server(config="listen: 127.0.0.1:@client@\nserver_name: bare\n") as server:
            assert context("test", "-s", server.url, tty=True).masked(VERSION) == snapshot

    def test_wrong_credentials(self, context, snapshot):
        with run_server(config=self.NARROW) as server:
            tested = context("test", "-s", server.url, "--user", "ann", env={"NATS_PASSWORD": SECRET})
            assert tested == snapshot
            assert SECRET not in tested.out + tested.err


def test_wait_ends_when_the_server_answers(context, start):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    waiting = start("context", "test", "-s", f"nats://127.0.0.1:{port}", "--wait-for", "60s")
    time.sleep(0.5)
    assert waiting.poll() is None
    with run_server(port=port):
        assert waiting.wait(60) == 0


def test_wait_that_no_server_ends_exits_9(context):
    done = context("test", "-s", "nats://127.0.0.1:1", "--wait-for", "300ms")
    assert done.exit_code == 9
    assert done.err.startswith("error: Gave up after 300ms: No server answers at `nats://127.0.0.1:1`\n")


def test_wait_does_not_outlast_refused_credentials(context, tmp_path):
    config = "listen: 127.0.0.1:@client@\nauthorization { user: ann, password: right }\n"
    with run_server(config=config) as server:
        assert context("test", "-s", server.url, "--wait-for", "60s").exit_code == 5
