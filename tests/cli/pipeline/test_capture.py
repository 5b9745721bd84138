"""`kvctl pipeline capture` and `compact`: mostly without Spark."""

import json
import signal
from itertools import chain
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from kvctl.pipeline.jobs.capture_folder import CaptureFolder
from kvctl.server import Server
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
def test_capture_continues_after_ctrl_c_and_compacts_to_the_bucket(run, start, env, server, bucket, tmp_path):
    folder, latest = tmp_path / "capture", tmp_path / "latest"
    where = ("--to", str(folder), "--checkpoint", str(tmp_path / "checkpoint"))
    running = start("pipeline", "capture", bucket, *where, "--trigger", "100ms", env=env)
    until(lambda: list(folder.glob("day=*/*")) or running.poll() is not None, what="the first batch", within=PATIENCE)
    put(server, bucket, "a.1", b"", {"KV-Operation": "DEL"})
    until(
        lambda: len(list(folder.glob("day=*/*"))) == 2 or running.poll() is not None,
        what="the second batch",
        within=PATIENCE,
    )
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert (running.returncode, out) == (130, b""), err.decode()
    assert f"`{folder}` holds 3 rows, up to revision 3; run the command again to continue" in err.decode()

    put(server, bucket, "c.1", b"y")
    found = run("pipeline", "capture", bucket, *where, "--once", "-o", "json", env=env, timeout=PATIENCE)
    assert found.exit_code == 0, found.err
    row = json.loads(found.stdout)
    assert row.pop("seconds") > 0
    counts = {"revision": 4, "rows": 1, "files": 1, "captured": 4}
    assert row == {"bucket": bucket, "path": str(folder), "checkpoint": str(tmp_path / "checkpoint"), **counts}
    assert sorted(ds.dataset(folder, partitioning="hive").to_table()["revision"].to_pylist()) == [1, 2, 3, 4]

    made = run("pipeline", "compact", str(folder), "--to", str(latest), "-o", "json", env=env, timeout=PATIENCE)
    assert made.exit_code == 0, made.err
    row = json.loads(made.stdout)
    assert row.pop("seconds") > 0
    assert row.pop("bytes") > 0
    counts = {"revision": 4, "keys": 2, "files": 1, "captured": 4, "replaced": False}
    assert row == {"bucket": bucket, "capture": str(folder), "path": str(latest), **counts}
    assert run("pipeline", "verify", str(latest), env=env).exit_code == 0


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
        (["--checkpoint", "capture/checkpoint"], 2, "is among the data"),
        (["--to", "s3://bucket/orders"], 2, "is not a path"),
        (["--to", "others"], 4, "has files that are not a capture"),
        (["--to", "others/file"], 2, "is not a folder"),
    ],
    ids=str,
)
def test_invalid_capture_fails_before_spark_starts(run, env, bucket, tmp_path, options, exit_code, said):
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "file").write_text("mine")
    places = {"--to": "capture", "--checkpoint": "checkpoint"}
    if options[0] in places:
        places[options[0]], options = options[1], []
    flags = [(name, text if "://" in text else str(tmp_path / text)) for name, text in places.items()]
    found = run("pipeline", "capture", bucket, *chain(*flags), *options, env=env)
    assert found.exit_code == exit_code, found.err
    assert said in found.err
    assert not (tmp_path / "capture").exists()


def test_capture_of_missing_bucket_fails(run, env, tmp_path):
    where = ("--to", str(tmp_path / "capture"), "--checkpoint", str(tmp_path / "checkpoint"))
    found = run("pipeline", "capture", "nowhere", *where, env=env)
    assert found.exit_code == 3
    assert found.err.startswith("error: Bucket `nowhere` does not exist\n")
    assert list(tmp_path.iterdir()) == []


def test_invalid_compaction_fails_before_spark_starts(run, env, tmp_path):
    capture, latest = str(tmp_path / "capture"), str(tmp_path / "latest")
    assert run("pipeline", "compact", capture, "--to", latest, env=env).exit_code == 3
    Path(capture).mkdir()
    CaptureFolder(Path(capture)).begun("orders", "2026-01-31T12:00:00Z", {}, forced=True)
    Path(latest).mkdir()
    (Path(latest) / "mine").write_text("")
    found = run("pipeline", "compact", capture, "--to", latest, env=env)
    assert found.exit_code == 4
    assert "contains files that are not a compaction" in found.err
    assert run("pipeline", "compact", capture, "--to", f"{capture}/latest", env=env).exit_code == 2
