"""`kvctl pipeline capture` and `compact`: mostly without Spark."""

import json
import signal

import pytest

from kvctl.server import Server
from tests.pipeline.tables.test_stored_table import stored
from tests.support.raw import RawClient
from tests.support.waiting import until

PATIENCE = 900.0
"""Seconds for Spark on a busy machine."""


@pytest.fixture
def env(server):
    return {"NATS_URL": server.url}


@pytest.fixture
def bucket(raw, unique):
    """A bucket with two keys."""
    name = unique()
    raw.create_bucket(name, max_msgs_per_subject=5)
    raw.put(name, "a.1", b"x")
    raw.put(name, "b.1", b"\xff")
    return name


@pytest.mark.slow
def test_capture_continues_after_ctrl_c_and_compacts(run, start, env, server, bucket, tmp_path):
    folder = tmp_path / "capture"
    running = start("pipeline", "capture", bucket, "--to", str(folder), "--trigger", "100ms", env=env)
    until(lambda: list(folder.glob("*.parquet")) or running.poll() is not None, what="a batch", within=PATIENCE)
    put(server, bucket, "a.1", b"", {"KV-Operation": "DEL"})
    until(lambda: len(list(folder.glob("_delta_log/*"))) == 3 or running.poll(), what="the second", within=PATIENCE)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert (running.returncode, out) == (130, b""), err.decode()
    assert f"`{folder}` holds 3 rows, up to revision 3; run the command again to continue" in err.decode()

    put(server, bucket, "c.1", b"y")
    line = ("pipeline", "capture", bucket, "--to", str(folder), "--once", "-o", "json")
    found = run(*line, env=env, timeout=PATIENCE)
    assert found.exit_code == 0, found.err
    row = json.loads(found.stdout)
    assert row.pop("seconds") > 0
    counts = {"version": 3, "revision": 4, "rows": 1, "files": 3, "captured": 4}
    assert row == {"bucket": bucket, "path": str(folder), "mode": "changes", **counts}
    assert run("pipeline", "verify", str(folder), env=env).exit_code == 0


def test_compaction_combines_files_and_deletes_old_ones(run, env, tmp_path):
    folder = tmp_path / "table"
    stored(folder, "delta", [1], [2, 3])
    (folder / "mine.txt").write_text("")
    made = run("pipeline", "compact", str(folder), "-o", "json", env=env)
    assert made.exit_code == 0, made.err
    row = json.loads(made.stdout)
    assert row.pop("bytes") > 0
    counts = {"version": 1, "files": 1, "added": 1, "removed": 2, "vacuumed": 0}
    assert row == {"bucket": "ORDERS", "path": str(folder), **counts}
    assert run("pipeline", "verify", str(folder), env=env).exit_code == 4, "a file is foreign"
    (folder / "mine.txt").unlink()
    assert run("pipeline", "verify", str(folder), env=env).exit_code == 0
    made = run("pipeline", "compact", str(folder), "--vacuum", "30m", "-o", "json", env=env)
    assert json.loads(made.stdout)["vacuumed"] == 0
    made = run("pipeline", "compact", str(folder), "--vacuum", "0s", "-o", "json", env=env)
    assert json.loads(made.stdout)["vacuumed"] == 2
    assert len(list(folder.glob("*.parquet"))) == 1
    assert run("pipeline", "verify", str(folder), env=env).exit_code == 0


def put(server: Server, bucket: str, key: str, value: bytes, headers: dict[str, str] | None = None) -> None:
    """Write a key over a new connection, as the server may close one that idles while Spark runs."""
    with RawClient(server.url) as client:
        client.put(bucket, key, value, headers)


@pytest.mark.parametrize(
    ("options", "exit_code", "said"),
    [
        (["--once", "--trigger", "1s"], 2, "`--once` and `--trigger` cannot be combined"),
        (["--trigger", "0s"], 2, "`--trigger` must be greater than 0"),
        (["--max-revisions", "0"], 2, "--max-revisions"),
        (["--force", "loss"], 2, "is not a safety check"),
        (["--keep-deleted"], 2, "requires `--mode latest`"),
        (["--mode", "all"], 2, "`--mode all` is not one of"),
        (["--value-format", "json"], 2, "require each other"),
        (["--to", "hdfs://bucket/orders"], 2, "is not a storage of tables"),
        (["--to", "others"], 4, "has files that are not a capture"),
        (["--to", "others/file"], 2, "is not a folder"),
    ],
    ids=str,
)
def test_invalid_capture_fails_before_spark_starts(run, env, bucket, tmp_path, options, exit_code, said):
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "file").write_text("mine")
    to = "capture"
    if options[0] == "--to":
        to, options = options[1], []
    to = to if "://" in to else str(tmp_path / to)
    found = run("pipeline", "capture", bucket, "--to", to, *options, env=env)
    assert found.exit_code == exit_code, found.err
    assert said in found.err
    assert not (tmp_path / "capture").exists()


def test_capture_of_missing_bucket_fails(run, env, tmp_path):
    found = run("pipeline", "capture", "nowhere", "--to", str(tmp_path / "capture"), env=env)
    assert found.exit_code == 3
    assert found.err.startswith("error: Bucket `nowhere` does not exist\n")
    assert list(tmp_path.iterdir()) == []


def test_invalid_compaction_is_refused(run, env, tmp_path):
    assert run("pipeline", "compact", str(tmp_path / "nowhere"), env=env).exit_code == 3
    stored(tmp_path / "table", "parquet", [1])
    found = run("pipeline", "compact", str(tmp_path / "table"), env=env)
    assert found.exit_code == 4
    assert "is not a Delta table" in found.err
