"""The last message of each subject, by one request each."""

import pytest

import kvctl
from kvctl.jetstream.per_subject import last_of_each
from tests.support.proxy import DOWN, UP, Cut, Proxy

KEYS = 17


@pytest.mark.parametrize("count", [1, KEYS])
@pytest.mark.parametrize("leader", [True, False])
async def test_a_cut_connection_loses_no_answer(server, raw, bucket_name, count, leader):
    raw.create_bucket(bucket_name)
    for number in range(KEYS):
        raw.put(bucket_name, f"k.{number}", b"%d" % number)
    subjects = [f"$KV.{bucket_name}.k.{number}" for number in range(count)]
    with Proxy(server.url) as proxy:
        async with kvctl.connect(proxy.url) as client:
            cut = proxy.on(f"{bucket_name}.k.{count - 1}".encode(), Cut(), way=UP if leader else DOWN)
            found = await last_of_each(client.api, f"KV_{bucket_name}", [*subjects, "$KV.none"], leader=leader)
            assert cut.seen.is_set()
    values = {subject: one and one.payload for subject, one in found.items()}
    assert values == {**{subject: b"%d" % number for number, subject in enumerate(subjects)}, "$KV.none": None}
