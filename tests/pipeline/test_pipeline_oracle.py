"""The data source and the sink against the list of all revisions, through random writes, failures and replays."""

import os
import random
import subprocess
import sys
import time
from collections import Counter

import pytest

from kvctl.pipeline.jobs.capture import CaptureOrder, capture
from kvctl.pipeline.options import parse
from kvctl.pipeline.tables.storage import TablePlace
from tests.pipeline.jobs.test_capture import rows_of
from tests.pipeline.killing import below, kill
from tests.pipeline.random_sink import RandomSink
from tests.pipeline.random_source import RandomSource
from tests.pipeline.revisions import Revisions
from tests.pipeline.write.test_stream_writer import Query
from tests.support.readme import ROOT

pytestmark = pytest.mark.oracle


@pytest.mark.guarantee("pipeline-19")
@pytest.mark.parametrize("history", [1, 2, 10])
def test_stream_sink_writes_each_row_once_whatever_is_replayed(seed, steps, history, server, raw, unique, monkeypatch):
    """In any partitions, by any worker, after kills; and newer values of others stay."""
    revisions = Revisions(raw, unique("SINK"), max_msgs_per_subject=history)
    sink = RandomSink(seed * 10 + history, revisions, history, server.url, monkeypatch)
    for _ in range(steps(10)):
        sink.step()
        sink.check()


@pytest.mark.parametrize("history", [1, 4])
@pytest.mark.parametrize(
    "config",
    [{}, {"max_age": 10**9, "duplicate_window": 10**8}, {"max_msgs": 40, "discard": "old"}],
    ids=["lasting", "expiring", "evicting"],
)
def test_stream_returns_the_newest_state_of_every_key_or_reports_a_loss(
    seed, steps, history, config, server, raw, unique
):
    """Each revision once, in batches of any size, with restarts at any point; readings hold what the bucket does."""
    revisions = Revisions(raw, unique("SOURCE"), max_msgs_per_subject=history, **config)
    source = RandomSource(seed * 10 + history, revisions, server.url, history=history, loses=bool(config))
    for _ in range(steps(15)):
        source.step()
        source.check()
        if not config:
            source.check_reads()
    source.close()
    print(f"{len(source.read)} read since the last of {source.losses} losses")


@pytest.mark.guarantee("pipeline-19")
def test_query_that_is_replayed_at_random_leaves_what_others_wrote(seed, steps, spark, server, raw, unique, tmp_path):
    """In Spark itself, which starts each batch again in other partitions after its last commit was lost."""
    dice = random.Random(seed)
    history = dice.choice((1, 3))
    revisions = Revisions(raw, unique("QUERY"), max_msgs_per_subject=history)
    query = Query(spark, tmp_path, url=server.url, bucket=revisions.bucket)
    written: dict[str, bytes] = {}
    for batch in range(steps(1)):
        rows = [{"key": f"k.{key}", "value": f"{batch}.{key}"} for key in dice.sample(range(60), k=40)]
        query.add(f"{batch}.json", rows)
        for replay in range(2):
            query.partitions = dice.randint(1, 4)
            print(f"batch {batch} in {query.partitions} partitions, replay {replay}")
            query.run()
            written |= {} if replay else {row["key"]: row["value"].encode() for row in rows}
            everything = revisions.refresh()
            assert {revision.key: revision.value for revision in everything} == written
            assert max(Counter((revision.key, revision.value) for revision in everything).values()) == 1
            for key in dice.sample(sorted(written), k=8):
                written[key] = f"theirs {batch} {replay} {key}".encode()
                revisions.put(key, written[key])
            query.forget_last_commit()
        query.partitions = dice.randint(1, 4)
        query.run()


CAPTURE = """
import sys
from datetime import timedelta
from kvctl.pipeline.jobs.capture import CaptureOrder, capture
from kvctl.pipeline.options import parse
from kvctl.pipeline.spark.engine import Engine, SparkTarget
from kvctl.pipeline.tables.storage import TablePlace

folder, url, bucket, mode = sys.argv[1:]
options = parse({"bucket": bucket, "url": url, "maxRevisionsPerTrigger": "50"})
with Engine(SparkTarget(master="local[2]")) as engine:
    order = CaptureOrder(mode=mode, trigger=timedelta(milliseconds=10))
    capture(engine, options, TablePlace(folder), order)
"""


@pytest.mark.guarantee("pipeline-29", by="kill")
@pytest.mark.parametrize("mode", ["changes", pytest.param("latest", marks=pytest.mark.slow)])
def test_capture_that_is_killed_at_random_has_each_revision_once(
    seed, steps, mode, engine, server, raw, unique, tmp_path
):
    """Driver, JVM and workers at any moment, under writes; the table against the list of all revisions."""
    dice = random.Random(seed)
    revisions = Revisions(raw, unique("KILLED"), max_msgs_per_subject=1_000_000)
    place = TablePlace(str(tmp_path / "capture"))
    command = [sys.executable, "-c", CAPTURE, place.uri, server.url, revisions.bucket, mode]

    def write(count: int) -> None:
        for _ in range(count):
            value = None if dice.random() < 0.1 else dice.randbytes(20)
            revisions.put(f"k{dice.randrange(300)}", value)
        time.sleep(0.02)

    for step in range(steps(1)):
        write(300)
        versions = len(list((tmp_path / "capture" / "_delta_log").glob("*.json"))) if step else 0
        with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}) as running:
            deadline = time.monotonic() + 120
            while len(list((tmp_path / "capture").glob("_delta_log/*.json"))) < versions + 2:
                assert running.poll() is None
                assert time.monotonic() < deadline
                write(5)
            end = time.monotonic() + dice.random() * 2
            while time.monotonic() < end:
                write(5)
            for pid in [*below(running.pid), running.pid]:
                if os.path.exists(f"/proc/{pid}"):
                    kill(str(pid))
        print(f"killed at version {len(list((tmp_path / 'capture' / '_delta_log').glob('*.json')))}")
        check_captured(revisions, place, mode, whole=False)
    options = parse({"bucket": revisions.bucket, "url": server.url, "maxRevisionsPerTrigger": "500"})
    capture(engine, options, place, CaptureOrder(mode=mode, once=True))
    check_captured(revisions, place, mode, whole=True)


def check_captured(revisions: Revisions, place: TablePlace, mode: str, *, whole: bool) -> None:
    """Compare the table with all revisions up to its own last one."""
    rows = rows_of(place)
    expected = revisions.refresh()
    reached = expected[-1].number if whole else max((row["revision"] for row in rows), default=0)
    expected = [revision for revision in expected if revision.number <= reached]
    if mode == "latest":
        expected = [
            revision for revision in {item.key: item for item in expected}.values() if revision.value is not None
        ]
    found = [(row["revision"], row["key"], row["value"]) for row in rows]
    assert found == sorted((revision.number, revision.key, revision.value) for revision in expected)
