"""Malformed answers of a server are errors of the server, in every command and in the library: never a bug of kvctl."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Iterator
from contextlib import aclosing, suppress
from datetime import timedelta
from typing import Any

import pytest

import kvctl
from kvctl.contexts import Context
from kvctl.errors import KvctlError, OutcomeUnknown
from kvctl.server import run_server
from tests.cli.conftest import run_process
from tests.mutation import mutated_frame
from tests.support.proxy import ANY, DOWN, Forward, Proxy, Replace

COMMANDS = """
get B a; get B a b c; get B >; get B a --leader; get B a --revision 1; get B a --as-of 2; get B a -o json
put B w 1; create B n 1; update B a 2 --if-revision 3; delete B w; purge B w --yes; copy B a c2 --overwrite
rename B a2 a3; revert B a 1; touch B a; history B; history B a --since -1h; keys B; keys B --count; keys B --deleted
keys B --as-of 3; watch B --until-current; watch B --until-current --history; wait B a --wait-for 1s; dump B
dump B --history; txn B -f -; load B -; load B - --create-only; env B --prefix P_ -- true; lock B l -- true
bucket ls; bucket ls --all; bucket show B; bucket show B -o json; bucket add B2; bucket edit B --history 5
bucket alternates B; bucket stats B; bucket diff B M; bucket compact B --older-than 1h; bucket copy B B3
mirror ls; mirror show M; mirror create M2 --origin B; mirror edit M --description x; aggregate ls; aggregate show A
aggregate create A2 --origin B --prefix p; topology status; topology status --format prometheus; topology graph
topology export; topology audit; topology trace B a; topology plan -f TOPOLOGY; doctor; context test
context test --bucket B
stream ls; stream show S; stream subjects S; stream get S 1; stream get S --last-for s.1; stream get S --batch 3 1
stream purge S --subject s.none --yes; stream edit S --set max_age=1h; stream create S2 --set subjects=s2
consumer ls S; consumer show S C; consumer add S C2; consumer edit S C --set max_deliver=5
consumer next S C --wait-for 1s; consumer fetch S C --count 2 --wait-for 1s; consumer pause S C 1s
table ls; table show T; table put T k v; table get T k; table entries T; table keys T; table get-all T k l
table remove T k; repo ls; repo show R; repo status R@main; repo log R@main; repo diff R@main; repo commit R@main -m x
get R@main k; put R@main k 2; keys R@main; branch ls R; branch create R@b2; tag ls R; tag create R@t2; repo gc R --yes
repo merge R b1 main; repo checkout R@main --to B --dry-run; repo revert R@main main --yes; bucket seal B9 --yes
"""
LINES = [line.split() for line in COMMANDS.replace("\n", ";").split(";") if line.strip()]
STDIN = b'{"key": "w", "value": "1"}\n'
TRANSACTION = b'{"then": [{"put": "w", "value": "1"}]}\n'
EXITS = {*range(10)}
RUNS = 40
"""Commands of the default run."""


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Iterator[tuple[str, str]]:
    """A server with one of everything; its URL, and a topology file."""
    folder = tmp_path_factory.mktemp("world")
    file = folder / "topology.yaml"
    file.write_text("version: 1\nbuckets: {B: {history: 5}}\nmirrors: {M: {origin: B}}\n")
    with run_server(name="world") as server:
        for line in (
            "bucket add SEALED",
            "bucket add B --history 5 --atomic --marker-ttl 1h",
            *(f"put B {key} value-{key}" for key in ("a", "b", "c", "a2")),
            "delete B b",
            "mirror create M --origin B",
            "aggregate create A --origin B --prefix p",
            "stream create S --set subjects=s.* --set allow_direct=true",
            "consumer add S C",
            "table create T --partitions 2",
            "table put T k v",
            "repo init R",
            "put R@main k 1",
            "repo commit R@main -m one",
            "branch create R@b1",
        ):
            done = run_process(*line.split(), env={"NATS_URL": server.url})
            assert done.exit_code == 0, done.transcript()
        yield server.url, str(file)


def changing(proxy: Proxy, chance: random.Random, rate: float) -> list[bytes]:
    """Change some of the frames that servers send from now on; return those that were sent in their place."""
    sent: list[bytes] = []

    def treat(frame: bytes) -> Any:
        if frame.startswith((b"MSG ", b"HMSG ", b"INFO ")) and chance.random() < rate:
            sent.append(mutated_frame(frame, chance))
            return Replace(sent[-1])
        return Forward()

    proxy.on(ANY, treat, way=DOWN, times=None)
    return sent


@pytest.mark.oracle
@pytest.mark.guarantee("commands-15", by="oracle")
def test_malformed_answers_to_commands_are_errors_of_the_server(world, seed, steps):
    url, file = world
    lines = [*LINES]
    for number in range(steps(RUNS)):
        chance = random.Random(seed * 1_000_003 + number)
        if number % len(lines) == 0:
            random.Random(seed + number).shuffle(lines)
        line = [file if word == "TOPOLOGY" else word for word in lines[number % len(lines)]]
        with Proxy(url) as proxy:
            sent = changing(proxy, chance, chance.choice((0.1, 0.3, 1)))
            begun = time.monotonic()
            stdin = TRANSACTION if line[0] == "txn" else STDIN
            done = run_process(*line, "--timeout", "1s", env={"NATS_URL": proxy.url}, stdin=stdin, timeout=60)
        shown = f"--seed {seed}, run {number}: {done.transcript()}\nsent: {[frame[:300] for frame in sent]}"
        assert "bug in kvctl" not in done.err, shown
        assert "Traceback" not in done.err, shown
        assert done.exit_code in EXITS, shown
        assert time.monotonic() - begun < 55, shown


def calls(client: kvctl.Client, name: str) -> list[Awaitable[Any]]:
    """Calls of the library on a bucket."""
    bucket = client.bucket("B")
    streams = client.jetstream
    return [
        bucket.get("a"),
        bucket.get("a", revision=1),
        bucket.get("a", leader=True),
        bucket.get_many(["a", "b", "c"]),
        collected(bucket.get_matching(">")),
        bucket.put("w", b"1"),
        bucket.create(name, b"1"),
        bucket.update(name, b"1", 3),
        bucket.delete("w"),
        bucket.purge("w"),
        bucket.put_many([(f"w{n}", b"1") for n in range(20)]),
        bucket.commit(kvctl.Transaction().put("w", b"1").put("w2", b"1")),
        collected(bucket.history(">")),
        collected(bucket.keys(">")),
        collected(bucket.entries(">")),
        watched(bucket),
        bucket.as_of(3),
        bucket.status(),
        client.buckets(),
        client.bucket_names(),
        client.create_bucket(name, history=3),
        client.delete_bucket(name),
        streams.account_info(),
        *changes(client, name),
        client.seal_bucket("SEALED"),
        client.create_or_update_bucket(name, history=2),
        kvctl.Tables(client).create(kvctl.TableConfig(f"T{name}", partitions=2, apart=True)),
        kvctl.Tables(client).delete(f"T{name}"),
    ]


def changes(client: kvctl.Client, name: str) -> list[Awaitable[Any]]:
    """Calls of the library that change streams and consumers, each with one request."""
    streams, stream = client.jetstream, client.jetstream.stream(name)
    return [
        streams.create_stream(name, subjects=[name], allow_direct=True),
        streams.update_stream(name, subjects=[name], allow_direct=True, description="changed"),
        stream.create_consumer("C", ack_policy="explicit"),
        stream.update_consumer("C", ack_policy="explicit", description="changed"),
        stream.create_or_update_consumer("C", ack_policy="explicit", description="again"),
        stream.consumer("C").pause(time.time_ns() + 3_600 * 10**9),
        stream.consumer("C").resume(),
        streams.delete_consumer(name, "C"),
        stream.purge(confirm=name),
        stream.delete_message(1),
        streams.delete_stream(name),
    ]


@pytest.mark.guarantee("commands-15", by="fault")
@pytest.mark.parametrize("answer", [b"{}", b"[]", b'{"success": 1}', b'{"purged": "x", "paused": null, "config": {}}'])
async def test_change_with_a_malformed_answer_is_unknown_or_found(server, unique, answer):
    name = unique("CHANGING")
    endpoints = re.compile(rb"io\.nats\.jetstream\.api\.v1\.[a-z_]*(create|update|delete|purge|pause)_response")
    with Proxy(server.url) as proxy:
        proxy.on(endpoints, lambda frame: Replace(with_payload(frame, answer)), way=DOWN, times=None)
        async with kvctl.connect(Context(url=proxy.url, timeout=timedelta(seconds=1))) as client:
            *before, deletion = changes(client, name)
            for call in before:
                with pytest.raises(OutcomeUnknown, match=rf"`\$JS\.API\.[A-Z.]*\.{name}.*malformed") as caught:
                    await call
                assert caught.value.exit_code == 6
            await deletion  # read back
            assert name not in await client.jetstream.stream_names()


def with_payload(frame: bytes, payload: bytes) -> bytes:
    """Return a MSG frame with another payload."""
    words = frame.partition(b"\r\n")[0].split(b" ")
    return b" ".join([*words[:-1], b"%d" % len(payload)]) + b"\r\n" + payload + b"\r\n"


async def watched(bucket: kvctl.Bucket) -> None:
    async with await bucket.watch(">", follow=False) as watcher:
        async for _ in watcher:
            pass


async def collected(items: AsyncGenerator[Any, None]) -> list[Any]:
    async with aclosing(items) as source:
        return [item async for item in source]


@pytest.mark.oracle
@pytest.mark.guarantee("commands-15", by="oracle")
async def test_malformed_answers_to_the_library_are_errors_of_the_server(world, seed, steps):
    url, _ = world
    for number in range(steps(RUNS) // 4):
        chance = random.Random(seed * 1_000_003 + number)
        with Proxy(url) as proxy:
            changing(proxy, chance, chance.choice((0.1, 0.3, 1)))
            with suppress(KvctlError):
                async with (
                    asyncio.timeout(60),
                    kvctl.connect(Context(url=proxy.url, timeout=timedelta(seconds=1))) as client,
                ):
                    for call in calls(client, f"n{seed}-{number}"):
                        with suppress(KvctlError):
                            await call
