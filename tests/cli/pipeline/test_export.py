"""`kvctl pipeline export`, `verify` and `load`: output and exit codes, mostly without Spark."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from kvctl.pipeline.tables.stored_table import MANIFEST
from tests.pipeline.tables.test_stored_table import flip, stored


@pytest.fixture
def env(server):
    return {"NATS_URL": server.url}


@pytest.fixture
def folder(tmp_path):
    """An export of two files."""
    stored(tmp_path / "out", "parquet", [1], [2])
    return tmp_path / "out"


@pytest.mark.slow
def test_exported_bucket_loads_into_an_equal_copy(run, env, raw, unique, tmp_path):
    bucket, copy = unique(), unique()
    raw.create_bucket(bucket, max_msgs_per_subject=2)
    raw.put(bucket, "a.1", b"x")
    raw.put(bucket, "b.1", b"\xff")
    raw.put(bucket, "b.1", b"\xfe")
    made = run("pipeline", "export", bucket, "--to", str(tmp_path / "out"), "-o", "json", env=env, timeout=900)
    assert made.exit_code == 0, made.err
    row = json.loads(made.stdout)
    assert row.pop("seconds") > 0
    assert row.pop("bytes") > 0
    expected = {"bucket": bucket, "path": str(tmp_path / "out"), "format": "delta", "mode": "latest", "cut": 3}
    assert {"exact": True, "rows": 2, "files": 1, "removed": 0}.items() <= row.items()
    assert expected.items() <= row.items()
    loaded = run(
        "pipeline", "load", str(tmp_path / "out"), "--into", copy, "--create", "-o", "json", env=env, timeout=900
    )
    assert loaded.exit_code == 0, loaded.err
    row = json.loads(loaded.stdout)
    assert row.pop("seconds") > 0
    counts = {"rows": 2, "written": 2, "unchanged": 0, "rejected": 0}
    assert row == {"bucket": copy, "path": str(tmp_path / "out"), "created": True, **counts}
    assert run("bucket", "diff", bucket, copy, "--exit-code", env=env).exit_code == 0


def test_complete_export_is_verified_without_spark(run, env, folder):
    found = run("pipeline", "verify", str(folder), "-o", "json", env=env)
    assert found.exit_code == 0
    row = json.loads(found.stdout)
    assert row.pop("seconds") >= 0
    assert row.pop("bytes") > 0
    found = {"rows": 2, "files": 2, "whole": True, "damage": []}
    assert row == {"path": str(folder), "bucket": "ORDERS", "format": "parquet", "mode": "latest", "cut": 17, **found}


def test_verify_names_each_damaged_file(run, env, folder):
    flip(folder / "part-00000.parquet")
    (folder / "part-00001.parquet").unlink()
    (folder / "part-9.parquet").write_bytes(b"{}\n")
    found = run("pipeline", "verify", str(folder), "-o", "json", env=env)
    assert found.exit_code == 4
    assert json.loads(found.stdout)["damage"] == [
        {"file": "part-00000.parquet", "problem": "changed"},
        {"file": "part-00001.parquet", "problem": "missing"},
        {"file": "part-9.parquet", "problem": "extra"},
    ]
    assert json.loads(found.err)["error"]["message"] == (
        f"The table in `{folder}` is damaged: `part-00000.parquet` has been changed, "
        "`part-00001.parquet` is missing, `part-9.parquet` does not belong to it"
    )
    refused = run("pipeline", "load", str(folder), "--into", "anything", "--create", env=env)
    assert (refused.exit_code, refused.out) == (4, "")
    assert "`part-00000.parquet` has been changed" in refused.err


def test_verify_of_damaged_export_on_a_terminal(run, env, folder, snapshot):
    (folder / "part-00001.parquet").unlink()
    found = run("pipeline", "verify", str(folder), env=env, tty=True)
    assert found.masked({r"Time +\S+": "Time TIME"}) == snapshot


@pytest.mark.parametrize(
    ("args", "exit_code", "message"),
    [
        (["export", "B", "--to", "DIR"], 4, "contains an export"),
        (["export", "B", "--to", "DIR/_manifest.json"], 2, "is not a folder"),
        (["export", "B", "--to", "hdfs://lake/b"], 2, "is not a storage of tables"),
        (["export", "B", "--to", "new", "--storage-option", "aws_region=eu"], 2, "applies to object stores"),
        (["export", "B", "--to", "s3://lake/b", "--storage-option", "region"], 2, "is not in the form K=V"),
        (["export", "B!", "--to", "new"], 2, "is not a bucket name"),
        (["export", "B", "--to", "new", "--mode", "all"], 2, "`--mode all` is not one of"),
        (["export", "B", "--to", "new", "--filter", "a.>.b"], 2, "is not a filter"),
        (["export", "B", "--to", "new", "--format", "json"], 2, "`--format json` is not one of"),
        (["export", "NOWHERE", "--to", "new", "--dry-run"], 3, "does not exist"),
        (["verify", "nowhere"], 3, "does not exist"),
        (["verify", "."], 4, "is not a complete export"),
        (["load", "nowhere", "--into", "B"], 3, "does not exist"),
        (["load", "DIR", "--into", "B", "--replicas", "3"], 2, "`--replicas` requires `--create`"),
        (["load", "DIR", "--into", "B", "--first-revision", "3"], 2, "`--first-revision` requires `--create`"),
        (["load", "DIR", "--into", "B", "--key", "id"], 2, "cannot be used with an export"),
        (["load", "DIR", "--into", "B", "--read-only"], 1, "is read-only"),
        (["load", "DIR", "--into", "B", "--force", "everything"], 2, "everything"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_invalid_export_or_load_fails_immediately(run, env, folder, args, exit_code, message):
    found = run("pipeline", *[arg.replace("DIR", str(folder)) for arg in args], env=env)
    assert (found.exit_code, found.out) == (exit_code, "")
    assert message in found.err
    assert (folder / MANIFEST).exists()


def test_export_dry_run_reports_files_to_remove(run, env, raw, bucket_name, folder):
    raw.create_bucket(bucket_name)
    raw.put(bucket_name, "a", b"1")
    found = run("pipeline", "export", bucket_name, "--to", str(folder), "--overwrite", "-n", "-o", "json", env=env)
    assert (found.exit_code, json.loads(found.stdout)) == (
        0,
        {"bucket": bucket_name, "path": str(folder), "format": "delta", "mode": "latest", "cut": 1, "removed": 3},
    )
    assert (folder / MANIFEST).exists()


@pytest.mark.parametrize(
    ("name", "exit_code"),
    [("t.csv", 2), ("t.tsv", 2), ("t.json", 2), ("t.parquet", 2), ("folder", 4), ("delta", 4), ("broken.json", 2)],
)
def test_load_of_a_table_of_others_names_its_columns(run, env, tmp_path, name, exit_code):
    rows = pa.table({"id": [1], "v": ["x"]})
    (tmp_path / "t.csv").write_text("id,v\n1,x\n")
    (tmp_path / "t.tsv").write_text("id\tv\n1\tx\n")
    (tmp_path / "t.json").write_text('{"id": 1, "v": "x"}\n')
    (tmp_path / "broken.json").write_text("[" * 100_000)
    (tmp_path / "folder").mkdir()
    for path in ("t.parquet", "folder/a.parquet"):
        pq.write_table(rows, tmp_path / path)
    write_deltalake(str(tmp_path / "delta"), rows)
    found = run("pipeline", "load", str(tmp_path / name), "--into", "B", env=env)
    shown = "" if name == "broken.json" else " to two of its columns `id`, `v`"
    assert (found.exit_code, found.out) == (exit_code, "")
    assert f"`load` and `commit` read it with `--key` and `--value` set{shown}" in found.err
