"""What a connection may do: yes, no, or unknown where servers leave the question to one another."""

import time
from dataclasses import replace
from typing import Any

import kvctl
from kvctl.doctor import examination
from kvctl.jetstream.permissions import probe
from tests.support.patience import quickest
from tests.support.raw import RawClient
from tests.support.restricted import restricted


async def test_pulling_is_asked_for():
    """From a user who may make consumers and not pull from them."""
    with restricted('publish: {deny: "$JS.API.CONSUMER.MSG.NEXT.>"}') as users:
        async with kvctl.connect(users.some) as client:
            found = {item.action: item for item in await probe(client.api)}
    assert [name for name, item in found.items() if not item.allowed] == ["receive listings"]
    assert found["receive listings"].reason == "permission denied"
    assert found["receive listings"].subject == "$JS.API.CONSUMER.MSG.NEXT.KV_BUCKET.KEY"


async def test_probes_change_nothing_and_leave_no_warning_in_the_log(own_server):
    with RawClient(own_server.url) as raw:
        raw.create_bucket("B")
        before = raw.api("STREAM.LIST")["streams"][0]["state"]
        async with kvctl.connect(own_server.url) as client:
            for bucket in (None, "B"):
                assert [item.action for item in await probe(client.api, bucket) if not item.allowed] == []
            await examination.examine(client.api)
        (info,) = raw.api("STREAM.LIST")["streams"]
        assert {**info["state"], "consumer_count": 0} == {**before, "consumer_count": 0}
        assert raw.api("CONSUMER.NAMES.KV_B")["total"] == 0
    log = own_server.log(10_000)
    assert "[INF]" in log
    assert [line for line in log.splitlines() if "[WRN]" in line or "[ERR]" in line] == []


async def test_silence_in_a_cluster_is_unknown_after_a_second(cluster):
    async with kvctl.connect(replace(cluster.contexts["cluster"], name=None)) as client:

        async def probed() -> float:
            begun = time.monotonic()
            found.update({item.action: item for item in await probe(client.api)})
            return time.monotonic() - begun

        found: dict[str, Any] = {}
        assert await quickest(probed, 4) < 4
    assert found["back up buckets"].allowed is None
    assert not [item for item in found.values() if item.allowed is False]
