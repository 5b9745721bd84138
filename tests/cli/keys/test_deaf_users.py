"""Writes of a user who may publish, and not subscribe to replies: nothing is sent, or its outcome is unknown."""

import asyncio

import pytest

import kvctl
from kvctl.errors import PermissionDenied
from tests.cli.conftest import run_process
from tests.support.restricted import restricted

WRITES = {
    "put": ["put", "B", "new", "v"],
    "create": ["create", "B", "new", "v"],
    "update": ["update", "B", "new", "v", "0"],
    "purge": ["purge", "B", "old", "--yes"],
    "delete": ["delete", "B", "old"],
    "load": ["load", "B", "-"],
    "bucket": ["bucket", "add", "C"],
    "stream": ["stream", "delete", "KV_B", "--yes"],
    "table": ["table", "create", "T"],
}


@pytest.fixture(scope="module")
def deaf():
    with restricted('publish: ">", subscribe: ["foo"]') as servers:
        everything = {"NATS_URL": servers.everything}
        assert run_process("bucket", "add", "B", env=everything).exit_code == 0
        assert run_process("put", "B", "old", "v", env=everything).exit_code == 0
        yield servers


@pytest.mark.guarantee("writing-18", by="fault")
@pytest.mark.parametrize("write", WRITES)
def test_a_write_whose_reply_cannot_arrive_is_not_sent(deaf, write):
    result = run_process(*WRITES[write], env={"NATS_URL": deaf.some}, stdin=b'{"key": "new", "value": "v"}\n')
    everything = {"NATS_URL": deaf.everything}
    assert run_process("keys", "B", env=everything).out == "old\n"
    assert run_process("stream", "ls", "-o", "name", env=everything).out == "KV_B\n"
    assert result.exit_code == 5, result.err
    assert "may not subscribe to" in result.err


def test_writes_of_the_library_are_not_sent_either(deaf):
    async def write() -> None:
        async with kvctl.connect(deaf.some) as client:
            bucket = client.bucket("B")
            for writing in (bucket.put("new", b"v"), bucket.put_many([("new", b"v")]), bucket.create("new", b"v")):
                with pytest.raises(PermissionDenied):
                    await writing

    asyncio.run(write())
    assert run_process("keys", "B", env={"NATS_URL": deaf.everything}).out == "old\n"
