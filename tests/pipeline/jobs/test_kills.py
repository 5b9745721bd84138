"""Killed exports, loads, captures and streams: nothing incomplete counts, and a repeated run completes them."""

import shutil
from pathlib import Path

import pytest

from kvctl.errors import ConflictError
from kvctl.pipeline.jobs.capture import CaptureOrder, capture
from kvctl.pipeline.jobs.export import export, of_bucket
from kvctl.pipeline.jobs.load import Order, load, open_export
from kvctl.pipeline.options import SourceOptions, parse
from kvctl.pipeline.tables import stored_table
from kvctl.pipeline.tables.storage import TablePlace
from tests.pipeline.jobs.test_capture import rows_of
from tests.pipeline.killing import run_killed

EXPORT = """
import os, sys
from pathlib import Path
from kvctl.pipeline.jobs.export import of_bucket
from kvctl.pipeline.tables import stored_table
from kvctl.pipeline.tables.storage import TablePlace
from kvctl.pipeline.spark.engine import Engine, SparkTarget
from kvctl.pipeline.jobs import export, load
from kvctl.pipeline.options import SourceOptions
from tests.pipeline.killing import kill_at, kill_when
from tests.support.raw import RawClient

whom, folder, url, bucket, point = sys.argv[1], Path(sys.argv[2]), *sys.argv[3:6]
format = sys.argv[6] if len(sys.argv) > 6 else "delta"

def loaded():
    return raw.api("STREAM.INFO.KV_" + bucket).get("state", {}).get("messages", 0) > 1000

if point == "writing":
    before = set(folder.rglob("part-*"))
    kill_when(whom, lambda: set(folder.rglob("part-*")) - before)
elif point == "written":
    kill_at(whom, stored_table, "publish")
elif point == "half moved":
    kill_at(whom, TablePlace, "move", call=2)
elif point == "moved":
    kill_at(whom, TablePlace, "write", when=lambda _, name, data: name == stored_table.MANIFEST)
with Engine(SparkTarget(master="local[2]")) as engine, RawClient(url) as raw:
    if point != "loading":
        options = SourceOptions(bucket=bucket, url=url, partitions=2, on_evicted="fail")
        place = TablePlace(str(folder))
        export.export(engine, lambda: of_bucket(options), place, format=format, overwrite=True)
    else:
        kill_when(whom, loaded)
        source = load.open_export(TablePlace(str(folder)))
        load.load(engine, source, SourceOptions(bucket=bucket, url=url), load.Order(create=True))
"""
"""An export, or a load if the point is `loading`."""
CAPTURE = """
import sys
from pathlib import Path
from kvctl.pipeline.jobs.capture import CaptureOrder, capture
from kvctl.pipeline.options import given_as, parse
from kvctl.pipeline.spark.engine import Engine, SparkTarget
from kvctl.pipeline.tables.delta import KvTable
from kvctl.pipeline.tables.storage import TablePlace
from tests.pipeline.killing import kill_at, kill_when

whom, folder, url, bucket, mode, point = sys.argv[1], Path(sys.argv[2]), *sys.argv[3:]
POINTS = {
    "first offset": "checkpoint/offsets/.*",
    "created": "capture/_delta_log/*0.json",
    "first rows": "capture/*.parquet",
    "first commit": "capture/_delta_log/*1.json",
    "second rows": "capture/*.parquet",
    "second plan": "checkpoint/offsets/1",
    "third plan": "checkpoint/offsets/2",
    "first rows of the sink": "capture/*.parquet",
}
if point in POINTS:
    kill_when(whom, lambda: len(list(folder.glob(POINTS[point]))) > (point == "second rows"))
else:
    kill_at(whom, KvTable, "append" if mode == "changes" else "merge", call=2, after=point == "committed")
options = parse({"bucket": bucket, "url": url, "maxRevisionsPerTrigger": "1000", "partitions": "2"})
with Engine(SparkTarget(master="local[2]")) as engine:
    if mode != "sink":
        capture(engine, options, TablePlace(str(folder / "capture")), CaptureOrder(once=True, mode=mode))
    else:
        rows = engine.spark.readStream.format("nats-kv").options(**given_as(options)).load()
        writer = rows.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
        writer.trigger(availableNow=True).start(str(folder / "capture")).awaitTermination()
"""
"""A capture, or a stream into Spark's file sink, of 3,000 revisions in three batches."""
REVISIONS = 3000


@pytest.mark.guarantee("pipeline-22", by="kill")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("point", "format"),
    [
        ("writing", "delta"),
        ("written", "delta"),
        ("writing", "parquet"),
        ("written", "parquet"),
        ("half moved", "parquet"),
        ("moved", "parquet"),
    ],
)
def test_an_export_whose_driver_is_killed_is_none_until_it_is_run_again(point, format, engine, server, fill, tmp_path):
    bucket = fill({f"k.{n}": b"x" * 100 for n in range(3000)})
    folder = tmp_path / "out"
    run_killed(EXPORT, "driver", folder, server.url, bucket, point, format)
    assert any(folder.rglob("part-*"))
    asked = SourceOptions(bucket=bucket, url=server.url)
    with pytest.raises(ConflictError, match="not a complete export"):
        stored_table.occupants(TablePlace(str(folder)), overwrite=False)
    made = export(engine, lambda: of_bucket(asked), TablePlace(str(folder)), format=format, overwrite=True)
    assert made.removed.files > 0
    assert made.table.rows == 3000
    assert stored_table.damages(stored_table.open_table(made.table.place)) == []
    assert not (folder / stored_table.STAGING).exists()


@pytest.mark.slow
@pytest.mark.parametrize("whom", ["jvm", "worker"])
def test_an_export_whose_spark_is_killed_fails_in_one_line_and_leaves_the_one_before(
    whom, engine, server, fill, tmp_path
):
    bucket = fill({f"k.{n}": b"x" * 1000 for n in range(20_000)})
    asked = SourceOptions(bucket=bucket, url=server.url)
    folder = tmp_path / "out"
    export(engine, lambda: of_bucket(asked), TablePlace(str(folder)))
    run_killed(EXPORT, whom, folder, server.url, bucket, "writing")  # a task is tried again
    assert stored_table.damages(stored_table.open_table(TablePlace(str(folder)))) == []


@pytest.mark.slow
@pytest.mark.parametrize("whom", ["driver", "jvm", "worker"])
async def test_a_load_that_is_killed_completes_when_it_is_run_again(
    whom, engine, server, fill, client, unique, tmp_path
):
    bucket = fill({f"k.{n}": b"%d" % n for n in range(20_000)}, max_msgs_per_subject=5)
    folder = tmp_path / "out"
    asked = SourceOptions(bucket=bucket, url=server.url)
    export(engine, lambda: of_bucket(asked), TablePlace(str(folder)))
    copy = unique()
    run_killed(EXPORT, whom, folder, server.url, copy, "loading")
    load(engine, open_export(TablePlace(str(folder))), SourceOptions(bucket=copy, url=server.url), Order(create=True))
    held = sorted([(entry.key, entry.value) async for entry in client.bucket(copy).history()])
    assert held == sorted((f"k.{n}", b"%d" % n) for n in range(20_000))


@pytest.fixture
def bucket(fill, raw):
    """A bucket of 3,000 revisions."""
    name = fill()
    for number in range(REVISIONS - 1):
        raw.publish(f"$KV.{name}.k{number}", b"value")
    raw.put(name, "last", b"value")
    return name


@pytest.mark.guarantee("pipeline-29", by="kill")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("point", "whom", "mode"),
    [
        ("created", "driver", "changes"),
        ("first rows", "all", "changes"),
        ("first commit", "driver", "changes"),
        ("written", "driver", "changes"),
        ("committed", "driver", "changes"),
        ("second rows", "jvm", "changes"),
        ("first rows", "worker", "changes"),
        ("written", "driver", "latest"),
        ("first commit", "driver", "latest"),
        ("committed", "driver", "latest"),
    ],
)
def test_a_capture_that_is_killed_holds_every_revision_once_when_it_ran_again(
    point, whom, mode, engine, server, bucket, tmp_path
):
    place = TablePlace(str(tmp_path / "capture"))
    run_killed(CAPTURE, whom, tmp_path, server.url, bucket, mode, point)
    before = [row["revision"] for row in rows_of(place)]
    assert before == list(range(1, len(before) + 1))
    options = parse({"bucket": bucket, "url": server.url, "maxRevisionsPerTrigger": "1000"})
    found = capture(engine, options, place, CaptureOrder(once=True, mode=mode))
    assert [row["revision"] for row in rows_of(place)] == list(range(1, REVISIONS + 1))
    assert found.table.offset.revision == REVISIONS


def clear(checkpoint: Path) -> None:
    """Do with a checkpoint what the help tells to do after a kill in its very first write."""
    if all(path.name.startswith(".") for path in (checkpoint / "offsets").iterdir()):
        shutil.rmtree(checkpoint / "offsets")
        shutil.rmtree(checkpoint / "commits", ignore_errors=True)


@pytest.mark.guarantee("pipeline-25", by="kill")
@pytest.mark.slow
@pytest.mark.parametrize("whom", ["driver", "jvm", "worker"])
@pytest.mark.parametrize("point", ["first offset", "first rows of the sink", "second plan", "third plan"])
def test_a_stream_that_is_killed_is_in_a_file_sink_once_as_spark_reads_it(point, whom, spark, server, bucket, tmp_path):
    if (point, whom) == ("first offset", "worker"):
        pytest.skip("no worker reads there yet")
    run_killed(CAPTURE, whom, tmp_path, server.url, bucket, "sink", point)
    clear(tmp_path / "checkpoint")
    rows = spark.readStream.format("nats-kv").options(bucket=bucket, url=server.url, partitions=2).load()
    writer = rows.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start(str(tmp_path / "capture")).awaitTermination()
    found = spark.read.parquet(str(tmp_path / "capture")).select("revision").collect()
    assert sorted(row[0] for row in found) == list(range(1, REVISIONS + 1))


@pytest.mark.guarantee("pipeline-28", by="kill")
@pytest.mark.slow
def test_a_checkpoint_from_a_kill_in_the_first_write_is_refused_by_spark_until_it_is_cleared(
    spark, server, bucket, tmp_path
):
    checkpoint = tmp_path / "checkpoint"
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "offsets" / ".0.8f2c.tmp").write_bytes(b"v1\n")
    rows = spark.readStream.format("nats-kv").options(bucket=bucket, url=server.url).load()
    writer = rows.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    with pytest.raises(Exception, match="LOCATION_NOT_EMPTY"):
        writer.start().awaitTermination()
    clear(checkpoint)
    writer.start().awaitTermination()
    assert (checkpoint / "commits" / "0").exists()
