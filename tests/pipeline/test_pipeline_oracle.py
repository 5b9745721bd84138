"""The data source and the sink against the list of all revisions, through random writes, failures and replays."""

import random
from collections import Counter

import pytest

from tests.pipeline.random_sink import RandomSink
from tests.pipeline.random_source import RandomSource
from tests.pipeline.revisions import Revisions
from tests.pipeline.write.test_stream_writer import Query

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
