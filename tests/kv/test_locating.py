"""What a name means while the stream that is asked for does not answer."""

from datetime import timedelta

import pytest

import kvctl
from kvctl import Context
from kvctl.errors import RequestTimeout, UsageError
from tests.support.proxy import LoseAnswer, Proxy


async def test_several_servers_are_those_of_one_cluster(server):
    away = "nats://127.0.0.1:1"
    for servers in ([away, server.url], (server.url,), f"{away},{server.url}"):
        async with kvctl.connect(servers) as connected:
            assert connected.connection.online
    for wrong in ([], [3], ["", server.url], 7):
        with pytest.raises(UsageError, match="a URL or a sequence of URLs"):
            async with kvctl.connect(wrong):
                pass


async def test_mirror_of_the_same_name_is_not_taken_for_a_bucket_that_is_slow(server, raw, client, bucket_name):
    await client.create_bucket(f"{bucket_name}_ORIGIN")
    await client.create_bucket(bucket_name)
    mirror = {"name": bucket_name, "mirror": {"name": f"KV_{bucket_name}_ORIGIN"}, "storage": "file"}
    raw.create_stream(**mirror)
    with Proxy(server.url) as proxy:
        async with kvctl.connect(Context(url=proxy.url, timeout=timedelta(seconds=4))) as connected:
            proxy.on(f"STREAM.INFO.KV_{bucket_name} ".encode(), LoseAnswer())
            with pytest.raises(RequestTimeout):
                await connected.bucket(bucket_name).locate()
            binding = await connected.bucket(bucket_name).locate()
    assert (binding.stream, binding.origin) == (f"KV_{bucket_name}", None)


async def test_leader_that_does_not_answer_is_an_error_with_a_hint(server, client, bucket_name):
    await client.create_bucket(bucket_name)
    with Proxy(server.url) as proxy:
        async with kvctl.connect(Context(url=proxy.url, timeout=timedelta(seconds=1))) as connected:
            proxy.on(f"STREAM.MSG.GET.KV_{bucket_name} ".encode(), LoseAnswer())
            with pytest.raises(RequestTimeout) as caught:
                await connected.bucket(bucket_name).get("k", leader=True)
    assert caught.value.hint == f"Its servers may be down; check with `kvctl bucket show {bucket_name}`"
