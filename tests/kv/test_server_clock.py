"""Times come from the server: a client whose clock is hours off gets the same results."""

import asyncio
import io
import json
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest

import kvctl
from kvctl import Bucket
from kvctl.errors import ServerError
from kvctl.jetstream import streams
from kvctl.jetstream.streams import ServerClock
from kvctl.kv import catalog
from kvctl.kv.bulk import dump_file
from kvctl.kv.copy_key import copy, rename
from kvctl.kv.maintenance import compaction, copy_bucket
from kvctl.kv.read.moment import parse_moment
from kvctl.topology.hazards import lossy_edit
from kvctl.units import parse_time
from kvctl.versions.catalog import stream_name
from tests.cli.conftest import run_process

pytestmark = pytest.mark.guarantee("writing-13", by="fault")

HOUR = timedelta(hours=1)
OFF_NS = 7200 * 10**9


@pytest.fixture(params=[OFF_NS, -OFF_NS], ids=["clock-ahead", "clock-behind"])
def skew(request, monkeypatch):
    """Nanoseconds by which the client's clock is off."""
    off: int = request.param
    right, right_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: right() + off / 10**9)
    monkeypatch.setattr(time, "time_ns", lambda: right_ns() + off)
    return off


@pytest.fixture
async def bucket(client, bucket_name):
    """A bucket with the key `k`, which has an hour to live."""
    made = await client.create_bucket(bucket_name, history=5, marker_ttl=timedelta(seconds=1))
    await made.create("k", b"v", ttl=HOUR)
    return made


def about_an_hour(ttl: timedelta | None) -> bool:
    return ttl is not None and HOUR - timedelta(minutes=5) < ttl <= HOUR


async def ttl_of(bucket: Bucket, key: str) -> timedelta | None:
    return (await bucket.get(key, leader=True)).ttl


class TestClock:
    async def test_clock_continues_from_the_server_s_time(self, client, bucket, skew):
        true = time.time_ns() - skew
        clock = await ServerClock.read(client.api, f"KV_{bucket.name}")
        assert abs(clock.now_ns() - true) < 5 * 10**9
        await asyncio.sleep(0.05)
        assert clock.now_ns() >= true + 50_000_000

    def test_needs_a_server_that_reports_it(self):
        with pytest.raises(ServerError, match="does not report its time"):
            ServerClock.from_info({"config": {}})


class TestTtls:
    async def test_rename_keeps_what_is_left(self, bucket, skew):
        await rename(bucket, "k", bucket, "k2")
        assert about_an_hour(await ttl_of(bucket, "k2"))

    @pytest.mark.parametrize("overwrite", [False, True])
    async def test_copy_keeps_what_is_left(self, bucket, skew, overwrite):
        await copy(bucket, "k", bucket, "k2", overwrite=overwrite)
        assert about_an_hour(await ttl_of(bucket, "k2"))

    @pytest.mark.parametrize("data", [copy_bucket.LATEST, copy_bucket.HISTORY])
    async def test_bucket_copy_keeps_what_is_left(self, client, bucket, skew, data):
        name = f"{bucket.name}x"
        await copy_bucket.copy(bucket, client.api, name, data=data)
        assert about_an_hour(await ttl_of(client.bucket(name), "k"))

    @pytest.mark.parametrize("history", [False, True])
    async def test_dump_notes_what_is_left(self, bucket, skew, history):
        true = time.time_ns() - skew
        file = io.BytesIO()
        await dump_file.dump(bucket, file, history=history)
        header, entry, _ = map(json.loads, file.getvalue().splitlines())
        assert about_an_hour(timedelta(seconds=entry["ttl"]))
        assert abs(parse_time(header["created"]) - true) < 60 * 10**9

    async def test_dump_of_the_past_notes_what_is_left(self, bucket, skew):
        file = io.BytesIO()
        await dump_file.dump_past(bucket, parse_moment("1"), file)
        assert about_an_hour(timedelta(seconds=json.loads(file.getvalue().splitlines()[1])["ttl"]))


class TestAges:
    async def test_compact_takes_what_is_old_enough(self, bucket, skew):
        await bucket.delete("k")
        assert not (await compaction.find(bucket, older_than=HOUR)).entries
        assert len((await compaction.find(bucket)).entries) == 1

    async def test_an_edit_that_shortens_the_ttl_counts_what_expires(self, client, bucket, skew):
        edit = await catalog.plan_edit(client.api, bucket.name, {"ttl": timedelta(minutes=30)})
        assert (await lossy_edit.cost(client.api, edit.before, edit.info, edit.after)).expired == 0
        await asyncio.sleep(1.1)
        edit = await catalog.plan_edit(client.api, bucket.name, {"ttl": timedelta(seconds=1)})
        assert (await lossy_edit.cost(client.api, edit.before, edit.info, edit.after)).expired == 1

    async def test_a_relative_moment_counts_back_from_the_server_s_time(self, bucket, skew):
        await asyncio.sleep(1.5)
        await bucket.put("later", b"")
        assert (await bucket.as_of("-1s")).revision == 1
        assert (await bucket.as_of("-1h")).revision == 0
        await asyncio.sleep(0.1)
        assert (await bucket.as_of("-1ms")).revision == 2

    async def test_a_young_bucket_has_lost_nothing_to_its_ttl(self, client, bucket_name, skew):
        young = await client.create_bucket(bucket_name, ttl=HOUR, history=2)
        for key in ("a", "a", "a", "b"):  # the history drops the first entry, not its age
            await young.put(key, b"")
        past = await young.as_of(3)
        assert [entry.key async for entry in past.entries()] == ["a"]


@pytest.fixture(params=[OFF_NS, -OFF_NS], ids=["clock-ahead", "clock-behind"])
def skewed(request, tmp_path, server):
    """Run kvctl as a process whose clock is off; its standard output."""
    clock = tmp_path / "clock"
    clock.mkdir()
    (clock / "sitecustomize.py").write_text(
        "import time\nright, right_ns = time.time, time.time_ns\n"
        f"time.time = lambda: right() + {request.param // 10**9}\ntime.time_ns = lambda: right_ns() + {request.param}\n"
    )
    paths = f"{clock}:{Path(kvctl.__file__).parents[1]}"

    def run(*args: str, **env: str) -> str:
        env |= {"PYTHONPATH": paths, "NATS_URL": server.url}
        done = run_process(*args, env=env, command=[sys.executable, "-m", "kvctl"])
        assert done.exit_code == 0, done.err
        return done.out

    return run


class TestCommands:
    async def test_rename_copy_and_edit_keep_what_is_left(self, bucket, skewed):
        await asyncio.to_thread(skewed, "rename", bucket.name, "k", "k2")
        await asyncio.to_thread(skewed, "copy", bucket.name, "k2", "k3")
        await asyncio.to_thread(skewed, "edit", bucket.name, "k3", EDITOR="sed -i s/v/edited/")
        assert about_an_hour(await ttl_of(bucket, "k2"))
        assert (await bucket.get("k3")).value == b"edited"
        assert about_an_hour(await ttl_of(bucket, "k3"))

    async def test_relative_times_of_streams_and_consumers_are_the_server_s(self, client, bucket, skewed, tmp_path):
        stream = f"KV_{bucket.name}"
        true = time.time_ns()
        found = await asyncio.to_thread(skewed, "stream", "get", stream, "--start-time", "-10m", "-o", "json")
        assert json.loads(found)["sequence"] == 1
        await asyncio.to_thread(skewed, "consumer", "add", stream, "c", "--start-time", "-10m")
        info = await client.api.call(f"CONSUMER.INFO.{stream}.c")
        assert abs(parse_time(info["config"]["opt_start_time"]) - (true - 600 * 10**9)) < 60 * 10**9
        config = tmp_path / "consumer.json"
        config.write_text('{"deliver_policy": "by_start_time", "opt_start_time": "-10m"}')
        for name, source in (
            ("set", ("--set", "deliver_policy=by_start_time", "--set", "opt_start_time=-10m")),
            ("file", ("--config", str(config))),
        ):
            await asyncio.to_thread(skewed, "consumer", "add", stream, name, *source)
            info = await client.api.call(f"CONSUMER.INFO.{stream}.{name}")
            assert abs(parse_time(info["config"]["opt_start_time"]) - (true - 600 * 10**9)) < 60 * 10**9
        await asyncio.to_thread(skewed, "consumer", "pause", stream, "c", "--for", "10m")
        info = await client.api.call(f"CONSUMER.INFO.{stream}.c")
        assert 500 * 10**9 < info["pause_remaining"] <= 600 * 10**9

    async def test_relative_start_of_a_mirror_is_the_server_s(self, client, bucket, skewed):
        stream, true = f"KV_{bucket.name}", time.time_ns()
        mirror = f"M{bucket.name}"
        start = ("--set", f"mirror.name={stream}", "--set", "mirror.opt_start_time=-10m")
        await asyncio.to_thread(skewed, "stream", "create", mirror, *start)
        info = await client.api.call(f"STREAM.INFO.{mirror}")
        assert abs(parse_time(info["config"]["mirror"]["opt_start_time"]) - (true - 600 * 10**9)) < 60 * 10**9


async def test_lives_of_tables_and_repositories_follow_each_other(client, unique, monkeypatch):
    """The first sequence of a life is the server's time: a clock that was set back gives no sequence twice."""
    name, lives = unique("T"), []
    right = time.time_ns
    for off in (OFF_NS, 0, -OFF_NS):
        monkeypatch.setattr(time, "time_ns", lambda off=off: right() + off)
        table = await kvctl.Tables(client).create(name)
        await kvctl.Repositories(client).create(name)
        info = await streams.info(client.api, stream_name(name))
        lives.append((table.life, info["config"]["first_seq"]))
        await kvctl.Tables(client).delete(name)
        await kvctl.Repositories(client).delete(name)
    assert lives == sorted(set(lives))
    assert lives[-1][0] * 1000 < right() < lives[0][0] * 1000 + 600 * 10**9
