"""`kvctl pipeline audit`, `run` and `commit`: output, exit codes, and checks before Spark starts."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

SPARK = ("--master", "spark://127.0.0.1:1")
"""Options of a Spark that does not exist: a command that starts Spark exits 5 and names it."""
TIMEOUT = 900


@pytest.fixture
def env(server):
    return {"NATS_URL": server.url}


@pytest.fixture
def folder(tmp_path):
    """A table of two rows, and a script with a variable."""
    pq.write_table(pa.table({"sku": ["a", "b"], "count": [1, 2]}), tmp_path / "stock.parquet")
    (tmp_path / "one.sql").write_text("select '${day}'")
    return tmp_path


ASKING = [
    ["export", "NOWHERE", "--to", "DIR/new"],
    ["export", "NOWHERE@main", "--to", "DIR/new"],
    ["load", "DIR/stock.parquet", "--into", "NOWHERE", "--key", "sku", "--value", "count"],
    ["capture", "NOWHERE", "--to", "DIR/new"],
    ["audit", "NOWHERE", "OTHER"],
    ["commit", "NOWHERE@main", "--from", "DIR/stock.parquet", "-m", "x", "--key", "sku"],
]
"""Command lines that name missing buckets."""


@pytest.mark.parametrize("args", ASKING, ids=" ".join)
def test_missing_bucket_fails_before_spark_starts(run, env, folder, args):
    found = run("pipeline", *placed(args, folder), *SPARK, env=env)
    assert (found.exit_code, found.out) == (3, "")
    assert "`NOWHERE` does not exist" in found.err
    assert not (folder / "new").exists()


@pytest.mark.parametrize("args", ASKING, ids=" ".join)
def test_unreachable_server_fails_before_spark_starts(run, folder, args):
    found = run("pipeline", *placed(args, folder), *SPARK, env={"NATS_URL": "nats://127.0.0.1:1"})
    assert (found.exit_code, found.out) == (5, "")
    assert found.err.startswith("error: No server answers at `nats://127.0.0.1:1`\n")


@pytest.mark.parametrize(
    ("args", "exit_code", "message"),
    [
        (["run", "DIR/one.sql"], 2, "Variable `${day}` has no value"),
        (["run", "DIR/one.sql", "--set", "day=1", "--domain", "hub"], 2, "has no variable `${domain}`"),
        (["run", "DIR/one.sql", "--set", "day"], 2, "`day` is not KEY=VALUE"),
        (["run", "DIR/one.sql", "--set", "day=1", "--read-only"], 1, "is read-only"),
        (["run", "DIR/stock.parquet"], 2, "is not text in UTF-8"),
        (["run", "DIR/nowhere.sql"], 2, "nowhere.sql"),
        (["audit", "NOWHERE", "B!"], 2, "is not a bucket name"),
        (["commit", "NOWHERE", "--from", "DIR/stock.parquet", "-m", "x"], 2, "needs a ref"),
        (["commit", "NOWHERE@main", "--from", "DIR/stock.parquet", "-m", " "], 2, "The message is empty"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_invalid_job_fails_before_spark_starts(run, env, folder, args, exit_code, message):
    found = run("pipeline", *placed(args, folder), *SPARK, env=env)
    assert (found.exit_code, found.out) == (exit_code, "")
    assert message in found.err


@pytest.mark.slow
def test_audit_names_differing_keys_and_exits_4(run, env, raw, unique):
    origin, other = unique(), unique()
    for bucket in (origin, other):
        raw.create_bucket(bucket)
        raw.put(bucket, "same", b"")
    raw.put(origin, "gone", b"1")
    found = run("pipeline", "audit", origin, other, "-o", "json", env=env, timeout=TIMEOUT)
    assert found.exit_code == 4, found.err
    (row,) = json.loads(found.stdout)
    expected = {"origin": origin, "replica": other, "kind": "bucket", "keys": 2, "consistent": False, "missing": 1}
    assert expected.items() <= row.items()
    assert found.err == ""


@pytest.mark.slow
def test_script_is_planned_and_run(run, env, raw, bucket_name, folder):
    raw.create_bucket(bucket_name)
    (folder / "p.sql").write_text(
        "create temporary view sink using `nats-kv` options (bucket '${bucket}', columns 'key,value');\n"
        f"insert into sink select concat('n.', sku), binary(string(count)) from parquet.`{folder}/stock.parquet`;\n"
    )
    line = ("pipeline", "run", str(folder / "p.sql"), "--set", f"bucket={bucket_name}", "-o", "json")
    planned = run(*line, "-n", env=env, timeout=TIMEOUT)
    assert planned.exit_code == 0, planned.err
    first, second = json.loads(planned.stdout)
    assert (first["plan"], second["plan"][:15]) == ("", "== Physical Pla")
    assert run("keys", bucket_name, env=env).out == ""
    ran = run(*line, env=env, timeout=TIMEOUT)
    assert ran.exit_code == 0, ran.err
    assert json.loads(ran.stdout)["statements"] == 2
    assert run("get", bucket_name, "n.b", env=env).out == "2"


@pytest.mark.slow
def test_repeated_commit_of_a_table_makes_one_commit(run, env, unique, folder):
    name = unique()
    assert run("repo", "init", name, env=env).exit_code == 0
    line = ("pipeline", "commit", f"{name}@main", "--from", str(folder / "stock.parquet"), "--key", "sku")
    line += ("--value", "count", "-m", "Tonight")
    made = run(*line, "-o", "json", env=env, timeout=TIMEOUT)
    assert made.exit_code == 0, made.err
    commit = json.loads(made.stdout)
    assert (commit["message"], commit["generation"]) == ("Tonight", 1)
    assert run("get", f"{name}@main", "b", env=env).out == "2"
    again = run(*line, env=env, timeout=TIMEOUT)
    assert (again.exit_code, again.out) == (0, f"{commit['id']}\n")
    assert again.err == f"`{name}@main` already holds these 2 rows\n"
    export = ("pipeline", "export", f"{name}@main", "--to", str(folder / "out"), "--filter", "b", "-o", "json")
    out = run(*export, env=env, timeout=TIMEOUT)
    assert out.exit_code == 0, out.err
    assert {"rows": 1, "ref": commit["id"]}.items() <= json.loads(out.stdout).items()
    assert pq.read_table(folder / "out")["key"].to_pylist() == ["b"]


def placed(args: list[str], folder: Path) -> list[str]:
    return [arg.replace("DIR", str(folder)) for arg in args]
