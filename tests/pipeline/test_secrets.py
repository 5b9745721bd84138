"""Credentials reach the workers and nothing else: no plan, page, log, event or file of Spark holds one.

The markers are neutral words: Spark hides what looks like a secret by itself.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kvctl.contexts import Context, ContextStore
from kvctl.server import run_server
from tests.cli.conftest import run_process
from tests.pipeline.cluster import READY, SMALL, environment, run_cluster
from tests.support.credentials import USER, Key, Operator, creds_file
from tests.support.readme import ROOT

pytestmark = pytest.mark.slow

BASE = 'listen: 127.0.0.1:@client@\njetstream { store_dir: "@store@" }\n'
DRIVER = """
import json, sys, urllib.request
from contextlib import redirect_stdout
from pathlib import Path
from kvctl.pipeline.spark.engine import Engine
from kvctl.pipeline.spark.engine import SparkTarget

every, master, conf, place = json.loads(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]), Path(sys.argv[4])
with Engine(SparkTarget(master=master, conf=conf)) as engine:
    spark = engine.spark
    spark.sparkContext.setLogLevel("INFO")
    for number, options in enumerate(every):
        rows = spark.read.format("nats-kv").options(**options).load()
        rows.explain(True)
        assert rows.count() == 3, options
        copies = rows.selectExpr("concat('copy.', key) as key", "value")
        copies.write.format("nats-kv").options(**options).mode("append").save()
        stream = spark.readStream.format("nats-kv").options(**options).load().writeStream.format("parquet")
        stream = stream.option("checkpointLocation", f"{place}/checkpoint{number}").option("path", f"{place}/s{number}")
        query = stream.trigger(availableNow=True).start()
        query.awaitTermination()
        print(query.lastProgress)
        given = ", ".join(f"`{name}` '{value}'" for name, value in options.items())
        spark.sql(f"create table t{number} using `nats-kv` options ({given})")
        spark.sql(f"describe extended t{number}").show(100, truncate=False)
        try:
            spark.read.format("nats-kv").options(**{**options, "bucket": "missing"}).load().count()
        except Exception as error:
            print(error)
    page = spark.sparkContext.uiWebUrl
    application = f"{page}/api/v1/applications/{spark.sparkContext.applicationId}"
    pages = [f"{page}/{name}/" for name in ("jobs", "stages", "environment", "executors", "SQL", "StreamingQuery")]
    pages += [f"{page}/SQL/execution/?id={number}" for number in range(6)]
    pages += [f"{application}/{name}" for name in ("environment", "jobs", "stages", "allexecutors")]
    pages += [f"{application}/sql?details=true&planDescription=true&length=100"]
    for url in pages:
        print(url, urllib.request.urlopen(url, timeout=60).read().decode())
    print(Path(engine.scratch, "spark.log").read_text())
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """The home directory of driver and workers: contexts and files with credentials."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def accounts(home):
    """Options of `nats-kv`, one set per kind of credentials; and all secrets in them."""
    key, operator = Key(USER), Operator()
    (jwt, seed), (other_jwt, other_seed) = operator.user(), operator.user()
    files = {"password": "tulip-password-6021", "token": "tulip-token-7712", "nkey": key.seed}
    for name, text in files.items():
        (home / name).write_text(f"{text}\n")
    creds = str(creds_file(home / "creds", jwt, seed))
    users = f"users: [ {{ user: ann, password: {files['password']} }}, {{ nkey: {key.public} }} ]"
    with ExitStack() as stack:
        configs = (f"authorization {{ {users} }}", f"authorization {{ token: {files['token']} }}")
        named, tokens = (stack.enter_context(run_server(config=BASE + config)).url for config in configs)
        signed = stack.enter_context(run_server(config=operator.config)).url
        contexts = {
            "word": Context(url=named, user="ann", password=files["password"]),
            "token": Context(url=tokens, token=files["token"]),
            "jwt": Context(url=signed, user_jwt=other_jwt, user_seed=other_seed),
        }
        given: list[dict[str, str]] = [{"context": name} for name in contexts]
        given += [
            {"url": named, "user": "ann", "passwordFile": str(home / "password")},
            {"url": named, "nkey": str(home / "nkey")},
            {"url": tokens, "tokenFile": str(home / "token")},
            {"url": signed, "creds": creds},
        ]
        store = ContextStore(home / ".config" / "nats")
        for name, context in contexts.items():
            store.save(Context(**{field: getattr(context, field) for field in FIELDS}, name=name))
        sets = [{**options, "bucket": f"B{number}"} for number, options in enumerate(given)]
        for options in sets:
            fill(options, home)
        yield sets, [*files.values(), seed, jwt, other_seed, other_jwt]


FIELDS = ("url", "user", "password", "token", "user_jwt", "user_seed")


@pytest.fixture(scope="module")
def cluster(home, tmp_path_factory):
    with run_cluster(tmp_path_factory.mktemp("cluster"), {"HOME": str(home)}) as running:
        yield running


@pytest.mark.guarantee("pipeline-2")
def test_no_credential_leaves_the_workers(accounts, cluster, home, tmp_path):
    sets, secrets = accounts
    events = tmp_path / "events"
    events.mkdir()
    conf = {
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.driver.host": "127.0.0.1",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
    }
    conf |= dict(pair.split("=", 1) for pair in SMALL if "=" in pair)
    variables = environment(tmp_path, {"HOME": str(home), "PYTHONPATH": str(ROOT)})
    line = [json.dumps(sets), cluster.url, json.dumps(conf), str(tmp_path)]
    command = [sys.executable, "-c", DRIVER, *line]
    done = subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, text=True, timeout=3 * READY)
    assert done.returncode == 0, done.stderr[-3000:]
    said = {"stdout": done.stdout, "stderr": done.stderr}
    said |= {str(path): path.read_text(errors="replace") for path in files_below(tmp_path, cluster.work.parent)}
    assert all(f"`bucket`='B{n}'" in done.stdout or f"B{n}" in done.stdout for n in range(len(sets)))
    assert "api/v1" in said["stdout"]
    assert any("SparkListenerJobEnd" in text for path, text in said.items() if "events" in path)
    assert any("executor" in path and "stderr" in path for path in said) or any("stderr" in path for path in said)
    found = {(name, secret[:12]) for name, text in said.items() for secret in secrets if secret in text}
    assert not found


def fill(options: dict[str, str], home: Path) -> None:
    """Three keys in the bucket of these options."""
    flags = {"url": "--server", "passwordFile": "--password-file", "tokenFile": "--token-file"}
    given = ((flags.get(name, f"--{name}"), value) for name, value in options.items() if name != "bucket")
    connection = [word for pair in given for word in pair]
    variables = {"HOME": str(home), "XDG_CONFIG_HOME": str(home / ".config")}
    for line in (("bucket", "add"), *(("put",) for _ in range(3))):
        key = [] if line[0] == "bucket" else [f"key.{os.urandom(4).hex()}", "value"]
        done = run_process(*line, options["bucket"], *key, *connection, env=variables)
        assert done.exit_code == 0, done.err


def files_below(*directories: Path) -> Iterator[Path]:
    """Every file of Spark's below these directories; not the package that PYTHONPATH names."""
    for directory in directories:
        yield from (path for path in directory.rglob("*") if path.is_file() and not path.is_symlink())
