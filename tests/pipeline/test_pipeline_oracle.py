"""The data source and the sink against the list of all revisions, through random writes, failures and replays."""

from collections.abc import Callable

import pytest

from kvctl.server import Server
from tests.pipeline.random_sink import RandomSink
from tests.pipeline.random_source import RandomSource
from tests.pipeline.revisions import Revisions
from tests.raw import RawClient

pytestmark = pytest.mark.oracle
Steps = Callable[[int], int]


@pytest.mark.parametrize("history", [1, 2, 10])
def test_stream_sink_writes_each_row_once_whatever_is_replayed(
    seed: int, steps: Steps, history: int, server: Server, raw: RawClient, unique: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """In any partitions, by any worker, after kills; and newer values of others stay."""
    revisions = Revisions(raw, unique("SINK"), max_msgs_per_subject=history)
    sink = RandomSink(seed * 10 + history, revisions, history, server.url, monkeypatch)
    for _ in range(steps(12)):
        sink.step()
        sink.check()


@pytest.mark.parametrize("history", [1, 4])
@pytest.mark.parametrize(
    "config", [{}, {"max_age": 10**9, "duplicate_window": 10**8}, {"max_msgs": 40, "discard": "old"}],
    ids=["lasting", "expiring", "evicting"],
)  # fmt: skip
def test_stream_gives_the_newest_state_of_every_key_or_tells_of_a_loss(
    seed: int, steps: Steps, history: int, config: dict[str, object], server: Server, raw: RawClient,
    unique: Callable[..., str],
) -> None:  # fmt: skip
    """Each revision once, in batches of any size, with restarts at any point; readings hold what the bucket does."""
    revisions = Revisions(raw, unique("SOURCE"), max_msgs_per_subject=history, **config)
    source = RandomSource(seed * 10 + history, revisions, server.url, history=history, loses=bool(config))
    for _ in range(steps(25)):
        source.step()
        source.check()
        if not config:
            source.check_reads()
    source.close()
    print(f"{len(source.read)} read since the last of {source.losses} losses")
