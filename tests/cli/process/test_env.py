"""`kvctl env`: keys as environment variables of a command that replaces kvctl."""

import json
import signal
import sys

import pytest

from kvctl.cli.process.env import variable_name
from tests.cli.conftest import Result
from tests.cli.keyed import Keyed
from tests.cli.repos import Repo

DUMP = "import json, os; print(json.dumps({k: v for k, v in os.environ.items() if k.startswith(('APP', 'app', 'X_'))}))"


@pytest.mark.parametrize(
    ("key", "prefix", "upper", "name"),
    [
        ("app.port", "", True, "APP_PORT"),
        ("app.port", "", False, "app_port"),
        ("app-port", "", True, "APP_PORT"),
        ("db/main=url", "", True, "DB_MAIN_URL"),
        ("7days", "", True, "_7DAYS"),
        ("7days", "app_", True, "app_7DAYS"),
        ("app.port", "My", False, "Myapp_port"),
    ],
)
def test_names(key, prefix, upper, name):
    assert variable_name(key, prefix, upper=upper) == name


def shown(keyed: Keyed, *args: str) -> dict[str, str]:
    outer = {"APP_HOST": "outer", "APP_X": "outer"}
    args = (*args, *([] if "--prefix" in args else ["--only", "APP_HOST,APP_PORT"]))
    result = keyed("env", "B", *args, "--", sys.executable, "-S", "-c", DUMP, env=outer)
    assert result.exit_code == 0, result.err
    found: dict[str, str] = json.loads(result.out)
    return found


def test_living_keys_are_variables_beside_those_that_are_set(keyed):
    keyed.put("app.host", b"there")
    keyed.put("app.port", b"8081")
    keyed.put("app.gone", b"1")
    keyed.delete("app.gone")
    keyed.put("other", b"1")
    assert shown(keyed) == {"APP_HOST": "there", "APP_PORT": "8081", "APP_X": "outer"}
    assert shown(keyed, "app.port") == {"APP_HOST": "outer", "APP_PORT": "8081", "APP_X": "outer"}
    named = shown(keyed, "app.*", "--prefix", "X_", "--no-upper")
    assert {name: value for name, value in named.items() if name.startswith("X_")} == {
        "X_app_host": "there",
        "X_app_port": "8081",
    }


def test_variables_at_a_ref_are_those_of_its_state(run, server, unique):
    repo = Repo(run, server.url, unique("R"))
    assert repo("init", ".").exit_code == 0
    repo.commit("one", app_port="80")
    repo.text("tag", "create", "@v1")
    repo.put(app_port="81", app_host="here")

    def at(ref: str, *filters: str) -> Result:
        only = ("--only", "APP_PORT", "--only", "APP_HOST")
        command = (sys.executable, "-S", "-c", DUMP)
        return run("env", "-s", server.url, f"{repo.name}@{ref}", *filters, *only, "--", *command)

    assert json.loads(at("v1").out) == {"APP_PORT": "80"}
    assert json.loads(at("main").out) == {"APP_PORT": "81", "APP_HOST": "here"}
    assert json.loads(at("main@", "app.*").out) == {"APP_PORT": "80"}
    missing = at("v1", "app.host")
    assert (missing.exit_code, missing.err.splitlines()[0]) == (3, f"error: Key `app.host` is not in `{repo.name}@v1`")
    repo("delete", ".", "--yes")


def test_values_pass_as_bytes(keyed):
    keyed.put("a", b"\xff\n=b")
    keyed.put("b", b"")
    script = "import os, sys; sys.stdout.buffer.write(os.environb[b'X_A'] + b'|' + os.environb[b'X_B'])"
    assert keyed("env", "B", "--prefix", "X_", "--", sys.executable, "-S", "-c", script).stdout == b"\xff\n=b|"


def test_the_command_replaces_kvctl(keyed, start):
    keyed.put("a", b"1")
    process = start(
        "env", keyed.name, "-s", keyed.url, "--prefix", "X_", "--", "sh", "-c", "echo $$; read _; kill -9 $$"
    )
    assert int(process.stdout.readline()) == process.pid
    process.communicate(b"\n")
    assert process.returncode == -signal.SIGKILL
    assert keyed("env", "B", "--prefix", "X_", "--", "sh", "-c", "exit 5").exit_code == 5
    status = keyed("env", "B", "--prefix", "X_", "--", "sh", "-c", "grep SigIgn /proc/self/status")
    assert int(status.out.split()[1], 16) & 1 << (signal.SIGPIPE - 1) == 0  # which Python ignores


def test_two_keys_for_one_name(keyed):
    keyed.put("app.port", b"1")
    keyed.put("app-port", b"2")
    result = keyed("env", "B", "--prefix", "X_", "--", "true")
    assert result.exit_code == 4
    assert "`app-port` and `app.port` would both set the variable `X_APP_PORT`" in result.err
    assert keyed("env", "B", "app.*", "--prefix", "X_", "--", "true").exit_code == 0


def test_what_no_variable_can_hold_is_named(keyed):
    keyed.put("blob", b"a\0b")
    result = keyed("env", "B", "--prefix", "X_", "--", "true")
    assert (result.exit_code, "The value of `blob` has a NUL byte" in result.err) == (1, True)
    keyed.put("blob", b"x" * (1 << 20))
    result = keyed("env", "B", "--prefix", "X_", "--", "true")
    assert (result.exit_code, "`true` cannot be run: Argument list too long" in result.err) == (126, True)


def test_a_missing_key_bucket_or_command(keyed):
    keyed.put("a", b"1")
    missing = keyed("env", "B", "a", "b", "c.*", "--prefix", "X_", "--", "true")
    assert (missing.exit_code, "Key `b` is not in bucket" in missing.err) == (3, True)
    assert keyed("env", "B", "c.*", "--prefix", "X_", "--", "true").exit_code == 0
    assert keyed("env", "nowhere", "--prefix", "X_", "--", "true").exit_code == 3
    assert keyed("env", "B", "--prefix", "X_", "--", "nowhere").exit_code == 127
    assert keyed("env", "B", "--prefix", "X_", "--", "/etc/passwd").exit_code == 126
    assert keyed("env", "B").exit_code == 2
    assert keyed("env", "B", "a").exit_code == 2
    assert keyed("env", "B", "a..b", "--prefix", "X_", "--", "true").exit_code == 2
    assert keyed("env", "B", "--prefix", "7", "--", "true").exit_code == 2


OWN_NAMES = "path ld.preload tar.options PAGER http/proxy x.7 a".split()


@pytest.mark.parametrize("option", [["--prefix", "KVCTL_TEST_"], ["--only", "KVCTL_TEST_A"]])
def test_no_other_variable_is_set_whatever_the_bucket_holds(keyed, option):
    for key in OWN_NAMES:
        keyed.put(key, b"foreign")
    keyed.put("kvctl/test.a", b"foreign")
    script = "import os; print(*(name for name, value in os.environ.items() if value == 'foreign'))"
    result = keyed("env", "B", *option, "--", sys.executable, "-S", "-c", script)
    names = result.out.split()
    assert result.exit_code == 0
    if option[0] == "--only":
        assert names == ["KVCTL_TEST_A"]
    else:
        assert len(names) == len(OWN_NAMES) + 1
        assert all(name.startswith("KVCTL_TEST_") for name in names)


def test_what_may_be_set_has_to_be_said(keyed):
    keyed.put("a", b"1")
    result = keyed("env", "B", "--", "true")
    assert (result.exit_code, "Missing option `--prefix TEXT` or `--only NAME`" in result.err) == (2, True)
    assert keyed("env", "B", "--prefix", "", "--", "true").exit_code == 2
    assert keyed("env", "B", "--only", "", "--", "true").exit_code == 2
