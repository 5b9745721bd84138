"""Writes whose processes are killed: a task's worker, the driver with all it started, the server."""

import asyncio
import base64
import json

import pytest

import kvctl
from kvctl.server import Server
from tests.pipeline.killing import run, run_killed
from tests.support.raw import RawClient

JOB = """
import json, sys
from kvctl.pipeline.spark.engine import Engine, SparkTarget
from kvctl.pipeline.spark.failure import explained
from tests.pipeline.killing import kill_when
from tests.support.raw import RawClient

whom, asked = sys.argv[1], json.loads(sys.argv[3])
raw, bucket = RawClient(asked["options"]["url"]), asked["options"]["bucket"]
if whom:
    kill_when(whom, lambda: raw.api("STREAM.INFO.KV_" + bucket)["state"]["last_seq"] >= asked["at"])
with Engine(SparkTarget(master="local[2]")) as engine:
    try:
        if "stream" in asked:
            rows = engine.spark.readStream.schema("key string, value string").json(asked["stream"])
            rows = rows.repartition(asked["partitions"])
            query = rows.writeStream.format("nats-kv").options(**asked["options"])
            query.trigger(availableNow=True).start().awaitTermination()
        else:
            rows = engine.spark.range(0, asked["rows"], 1, 4)
            rows = rows.selectExpr("concat('k.', id) as key", "cast(concat('v', id) as binary) as value")
            rows.write.format("nats-kv").options(**asked["options"]).mode(asked["mode"]).save()
    except Exception as error:
        sys.exit(f"error: {explained(error)}")
"""
"""Writes, and kills when the bucket has come to revision `at`."""
ROWS = 60_000


@pytest.fixture
def write(tmp_path):
    """Run the job: whole, or with `whom` to kill at a revision."""

    def write(whom: str = "", **asked: object) -> None:
        text = json.dumps({"rows": ROWS, "mode": "append", **asked})
        if whom:
            run_killed(JOB, whom, tmp_path / "job", text)
        else:
            code, said = run(JOB, tmp_path / "job", "", text)
            assert code == 0, said

    return write


@pytest.fixture
def bucket(raw, unique):
    name = unique("KILL")
    raw.create_bucket(name, max_msgs_per_subject=5, duplicate_window=100_000_000)
    return name


@pytest.mark.guarantee("pipeline-14", by="kill")
@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, {"writeMode": "create"}])
def test_a_killed_worker_adds_no_second_revision(server, raw, write, bucket, more):
    write("worker", at=5_000, options={"url": server.url, "bucket": bucket, **more})
    assert tuple(map(raw.state(bucket).get, ("last_seq", "num_subjects"))) == (ROWS, ROWS)


@pytest.mark.guarantee("pipeline-15", by="kill")
@pytest.mark.slow
@pytest.mark.parametrize("sequence", [1, 20_000, 55_000])
def test_killed_driver_continues_under_the_same_id(server, raw, write, bucket, sequence):
    options = {"url": server.url, "bucket": bucket, "writeId": "one"}
    write("all", at=sequence, options=options)
    assert raw.state(bucket)["last_seq"] < ROWS
    write(options=options)
    assert tuple(map(raw.state(bucket).get, ("last_seq", "num_subjects"))) == (ROWS, ROWS)


@pytest.mark.guarantee("pipeline-18", by="kill")
@pytest.mark.slow
@pytest.mark.parametrize(("sequence", "partitions"), [(1, 2), (30_000, 2), (30_000, 5)])
def test_a_killed_batch_of_a_stream_is_completed(server, raw, write, bucket, tmp_path, sequence, partitions):
    """In the same partitions or others; what somebody wrote since over a row of it stays."""
    folder = tmp_path / "input"
    folder.mkdir()
    for name in range(2):
        rows = ({"key": f"k.{n}", "value": f"v{n}"} for n in range(name * ROWS // 2, (name + 1) * ROWS // 2))
        (folder / f"{name}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = {"url": server.url, "bucket": bucket, "checkpointLocation": str(tmp_path / "checkpoint")}
    write("all", at=sequence, stream=str(folder), options=options, partitions=2)
    assert raw.state(bucket)["last_seq"] < ROWS
    first = raw.api(f"STREAM.MSG.GET.KV_{bucket}", {"seq": 1})["message"]["subject"].removeprefix(f"$KV.{bucket}.")
    raw.put(bucket, first, b"theirs")
    write(stream=str(folder), options=options, partitions=partitions)
    assert tuple(map(raw.state(bucket).get, ("last_seq", "num_subjects"))) == (ROWS + 1, ROWS)
    last = raw.api(f"STREAM.MSG.GET.KV_{bucket}", {"last_by_subj": f"$KV.{bucket}.{first}"})["message"]
    assert base64.b64decode(last["data"]) == b"theirs"


@pytest.mark.guarantee("pipeline-17", by="kill")
@pytest.mark.slow
@pytest.mark.parametrize("place", ["writing", "removal"])
def test_a_killed_overwrite_is_completed_by_the_next(server, raw, write, unique, place):
    bucket, before = unique("KILL"), 3000
    raw.create_bucket(bucket)
    for n in range(before):
        raw.publish(f"$KV.{bucket}.old.{n}", b"old")
    raw.flush()
    asked = {"options": {"url": server.url, "bucket": bucket}, "mode": "overwrite"}
    write("all", at={"writing": before + 5_000, "removal": before + ROWS + 1}[place], **asked)
    if place == "writing":
        assert {f"old.{n}" for n in range(before)} <= asyncio.run(_living(server, bucket))
    write(**asked)
    assert asyncio.run(_living(server, bucket)) == {f"k.{n}" for n in range(ROWS)}


async def _living(server: Server, bucket: str) -> set[str]:
    async with kvctl.connect(server.url) as client:
        return {key async for key in client.bucket(bucket).keys()}


@pytest.mark.slow
def test_a_server_that_is_lost_is_one_clear_error(own_server, tmp_path):
    with RawClient(own_server.url) as raw:
        raw.create_bucket("LOST")
    asked = {"rows": ROWS, "mode": "append", "at": 5_000, "options": {"url": own_server.url, "bucket": "LOST"}}
    code, said = run(JOB, tmp_path / "job", str(own_server.pid), json.dumps(asked))
    assert code == 1
    assert len([line for line in said.splitlines() if line.startswith("error: ")]) == 1
    assert len(said) < 2_000
