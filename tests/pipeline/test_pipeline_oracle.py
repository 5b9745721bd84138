"""The data source and the sink against the list of all revisions, through random writes, failures and replays."""

from collections.abc import Callable

import pytest

from kvctl.server import Server
from tests.pipeline.random_sink import RandomSink
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
    for _ in range(steps(25)):
        sink.step()
        sink.check()
