"""Exports and captures in an object store: moto's server speaks S3 over HTTP; the commands run as users run them."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from urllib.request import Request, urlopen

import pyarrow.fs as fs
import pytest

from tests.cli.conftest import run_process
from tests.pipeline.cluster import free_ports
from tests.support.waiting import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("moto") is None or find_spec("flask") is None, reason="the extra `s3test` is missing"),
]
SECRET = "neutral-marker-of-a-key"
PATIENCE = 300.0
UNLIMITED = 1_000_000_000


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory) -> Iterator[str]:
    """The URL of a server that keeps a bucket `lake` in memory, and takes all credentials until `accept` limits it."""
    (port,) = free_ports(1)
    log = tmp_path_factory.mktemp("moto") / "log"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    env = {**os.environ, "INITIAL_NO_AUTH_ACTION_COUNT": str(UNLIMITED)}
    with log.open("wb") as file, subprocess.Popen(command, stdout=file, stderr=file, env=env) as server:
        try:
            url = f"http://127.0.0.1:{port}"

            def answers() -> bool:
                with suppress(OSError):
                    return bool(urlopen(f"{url}/moto-api/", timeout=1).status == 200)
                return False

            until(answers, what="moto", within=60)
            yield url
        finally:
            server.kill()


def accept(endpoint: str, requests: int) -> None:
    """Refuse the credentials after a number of requests."""
    text = {"Content-Type": "text/plain"}  # as a form, moto would not see it
    urlopen(Request(f"{endpoint}/moto-api/reset-auth", f"{requests}".encode(), text), timeout=30).read()


@pytest.fixture(scope="module")
def store(endpoint):
    """The bucket by pyarrow."""
    found = fs.S3FileSystem(
        access_key="app", secret_key=SECRET, endpoint_override=endpoint, region="us-east-1", allow_bucket_creation=True
    )
    found.create_dir("lake")
    return found


@pytest.fixture
def pipeline(endpoint, store, server):
    """`pipeline("verify", "s3://lake/x")`: one row; credentials are in the environment."""
    env = {
        "AWS_ACCESS_KEY_ID": "app",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "NATS_URL": server.url,
    }

    def run(*args: str, code: int = 0, env: dict[str, str] = env) -> dict[str, object]:
        done = run_process("pipeline", *args, "-o", "json", env=env, timeout=PATIENCE)
        assert done.exit_code == code, done.err
        assert SECRET not in done.out + done.err
        row: dict[str, object] = json.loads(done.out or done.err)
        return row

    return run


@pytest.mark.parametrize("format", ["delta", "parquet"])
def test_bucket_is_exported_verified_and_replaced(format, pipeline, store, fill, unique):
    bucket, uri = fill({"a": b"1", "b": b"\xff"}), f"s3://lake/{unique()}"
    made = pipeline("export", bucket, "--to", uri, "--format", format)
    assert (made["rows"], made["path"], made["format"]) == (2, uri, format)
    assert pipeline("verify", uri)["whole"]
    assert "contains" in str(pipeline("export", bucket, "--to", uri, "--format", format, code=4))
    assert pipeline("export", bucket, "--to", uri, "--format", format, "--overwrite")["removed"]
    assert pipeline("verify", uri)["rows"] == 2
    for info in store.get_file_info(fs.FileSelector(uri[5:])):
        if info.path.endswith(".parquet"):  # of a Delta table, those of the replaced version, too
            store.delete_file(info.path)
    pipeline("verify", uri, code=4)


def test_bucket_is_captured_and_compacted(pipeline, store, fill, raw, unique):
    bucket, uri = fill({"a": b"1", "b": b"2"}, max_msgs_per_subject=3), f"s3://lake/{unique()}"
    assert pipeline("capture", bucket, "--to", uri, "--once")["rows"] == 2
    raw.put(bucket, "a", b"3")
    again = pipeline("capture", bucket, "--to", uri, "--once")
    assert (again["rows"], again["captured"], again["revision"]) == (1, 3, 3)
    assert pipeline("verify", uri)["whole"]
    assert pipeline("compact", uri, "--vacuum", "0s")["files"] == 1
    assert pipeline("verify", uri)["rows"] == 3
    latest = f"{uri}-latest"
    assert pipeline("capture", bucket, "--to", latest, "--once", "--mode", "latest")["captured"] == 2
    raw.put(bucket, "b", b"", {"KV-Operation": "DEL"})
    assert pipeline("capture", bucket, "--to", latest, "--once", "--mode", "latest")["captured"] == 1


def test_options_are_given_instead_of_the_environment(pipeline, endpoint, server, fill, unique, tmp_path):
    (tmp_path / "key").write_text(f"{SECRET}\n")
    options = {"aws_access_key_id": "app", "aws_secret_access_key": f"@{tmp_path / 'key'}", "aws_region": "us-east-1"}
    options |= {"aws_endpoint_url": endpoint, "aws_allow_http": "true"}
    flags = [flag for name, text in options.items() for flag in ("--storage-option", f"{name}={text}")]
    bucket, uri = fill({"a": b"1"}), f"s3://lake/{unique()}"
    env = {"NATS_URL": server.url, "AWS_EC2_METADATA_DISABLED": "true"}
    assert pipeline("export", bucket, "--to", uri, *flags, env=env)["rows"] == 1
    assert pipeline("verify", uri, *flags, env=env)["whole"]
    (tmp_path / "t.sql").write_text(
        "create temporary view sink using `nats-kv` options (bucket '${b}', columns 'key,value');\n"
        "insert into sink select concat('again.', key), value from exported"
    )
    script = ("run", str(tmp_path / "t.sql"), "--set", f"b={bucket}", "--table", f"exported={uri}", *flags)
    assert "MapInArrow" in str(pipeline(*script, "--dry-run", env=env))
    assert pipeline(*script, env=env)["statements"] == 2
    assert pipeline("export", bucket, "--to", uri, "--overwrite", *flags, env=env)["rows"] == 2
    assert "Could not" in str(pipeline("export", bucket, "--to", "s3://nowhere/x", *flags, code=1, env=env))


@pytest.mark.parametrize("requests", [2, 5])
@pytest.mark.parametrize("job", ["export", "capture"])
def test_credentials_that_end_in_a_job_are_named_and_the_next_run_completes(
    job, requests, pipeline, endpoint, fill, unique
):
    bucket, uri = fill({"a": b"1", "b": b"2"}), f"s3://lake/{unique()}"
    line = [job, bucket, "--to", uri, "--once" if job == "capture" else "--overwrite"]
    accept(endpoint, requests)
    try:
        failed = pipeline(*line, code=1)
    finally:
        accept(endpoint, UNLIMITED)
    assert "AWS_" in str(failed), failed
    done = pipeline(*line)
    assert done["captured" if job == "capture" else "rows"] == 2
    assert pipeline("verify", uri)["rows"] == 2
