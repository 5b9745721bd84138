"""Place and settings of a session, without starting one."""

import pytest

from kvctl.errors import NoServer, UsageError
from kvctl.pipeline.spark import preflight
from kvctl.pipeline.spark.preflight import check_reachable
from kvctl.pipeline.spark.session_config import Target, parse_conf, settings, with_retries


def told(target: Target) -> dict[str, str]:
    return settings(target, cores=2, scratch="/scratch", java_options="-Dlog=x")


@pytest.mark.parametrize(
    ("master", "told_as"),
    [
        ("local", "local[1,4]"),
        ("local[3]", "local[3,4]"),
        ("local[*]", "local[*,4]"),
        ("local[2,1]", "local[2,1]"),
        ("local-cluster[2,1,1024]", "local-cluster[2,1,1024]"),
        ("spark://a:7077", "spark://a:7077"),
    ],
)
def test_a_task_has_four_attempts_on_this_machine_too(master, told_as):
    assert with_retries(master) == told_as


def test_local_session_listens_on_loopback_only_without_web_page():
    local = told(Target())
    assert local["spark.driver.host"] == local["spark.driver.bindAddress"] == "127.0.0.1"
    assert local["spark.ui.enabled"] == "false"
    assert local["spark.sql.warehouse.dir"].startswith("/scratch/")


def test_driver_is_reachable_for_a_cluster():
    assert not {"spark.driver.host", "spark.driver.bindAddress"} & told(Target("spark://a:7077")).keys()


def test_driver_of_a_local_cluster_listens_on_loopback():
    assert told(Target("spark://127.0.0.1:7077"))["spark.driver.host"] == "127.0.0.1"


def test_user_settings_override_ours_and_extend_java_options():
    conf = {"spark.ui.enabled": "true", "spark.driver.extraJavaOptions": "-Xss4m"}
    found = told(Target(conf=conf))
    assert found["spark.ui.enabled"] == "true"
    assert found["spark.driver.extraJavaOptions"] == "-Dlog=x -Xss4m"


def test_last_setting_of_a_name_counts():
    assert parse_conf(["a.b=1", "c=x=y", "a.b="]) == {"a.b": "", "c": "x=y"}


@pytest.mark.parametrize("pair", ["a", "=b", " =b", ""])
def test_a_setting_without_name_or_value_is_refused(pair):
    with pytest.raises(UsageError, match="K=V"):
        parse_conf([pair])


@pytest.mark.parametrize(
    "target",
    [{"master": "local", "remote": "sc://a"}, {"master": ""}, {"remote": ""}, {"remote": "spark://a"}],
    ids=str,
)
def test_invalid_masters_and_remotes_are_refused(target):
    with pytest.raises(UsageError):
        Target(**target)


@pytest.mark.parametrize("kind", ["master", "remote"])
def test_unreachable_server_is_reported_immediately(kind):
    scheme = {"master": "spark", "remote": "sc"}[kind]
    with pytest.raises(NoServer, match=r"Could not reach .*: Connection refused"):
        check_reachable(Target(**{kind: f"{scheme}://127.0.0.1:1"}))


def test_listener_that_is_not_a_connect_server_is_reported_quickly(server, monkeypatch):
    monkeypatch.setattr(preflight, "ANSWER", 0.5)
    with pytest.raises(NoServer, match="is not a Spark Connect server"):
        check_reachable(Target(remote=f"sc://127.0.0.1:{server.port}"))
    with pytest.raises(UsageError, match="is not the URL of a Spark Connect server"):
        check_reachable(Target(remote=f"sc://127.0.0.1:{server.port}/path;token=hush"))


@pytest.mark.parametrize("address", ["", ":7077", "a:b", "[::1"])
def test_invalid_address_is_refused(address):
    with pytest.raises(UsageError, match="not a server address"):
        check_reachable(Target(f"spark://{address}"))
