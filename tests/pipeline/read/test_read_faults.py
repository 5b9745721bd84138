"""Reads while servers go away, and values and keys of every kind, without Spark's part of the way."""

import time
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import StringType, StructField, StructType

from kvctl.errors import KvctlError, RequestTimeout, StreamReplaced
from kvctl.pipeline.options import parse
from kvctl.pipeline.read.batch_reader import KvReader
from kvctl.pipeline.worker_connection import context_of
from kvctl.server import Server
from tests.pipeline.reading import Read, latest
from tests.support.differences import differences
from tests.support.proxy import LoseAnswer, Proxy
from tests.support.raw import RawClient
from tests.support.waiting import until

TOKEN = st.text("abcXYZ019-/_=", min_size=1, max_size=8)
KEYS = st.lists(TOKEN, min_size=1, max_size=4).map(".".join).filter(lambda key: not key.startswith("_kv"))
MANY = 30_000


def filled(server: Server, bucket: str, history: int = 1, count: int = MANY) -> None:
    with RawClient(server.url) as raw:
        raw.create_bucket(bucket, max_msgs_per_subject=history)
        for number in range(count):
            raw.publish(f"$KV.{bucket}.k.{number}", b"%d" % number * 20)
        while raw.state(bucket)["last_seq"] < count:
            time.sleep(0.01)


@settings(max_examples=25, deadline=None)
@given(entries=st.dictionaries(KEYS, st.binary(max_size=200), max_size=20), history=st.integers(1, 2))
def test_any_values_come_as_they_were_written(server, entries, history):
    with RawClient(server.url) as raw:
        bucket = f"ANY{raw.info['client_id']}"
        raw.create_bucket(bucket, max_msgs_per_subject=history)
        for key, value in entries.items():
            raw.put(bucket, key, value)
        assert latest(server.url, bucket) == entries
        chosen = dict(list(entries.items())[::2])
        assert latest(server.url, bucket, filter=",".join(chosen) or "none") == chosen
        raw.api(f"STREAM.DELETE.KV_{bucket}")


def test_large_values_and_many_rows_come_in_batches_of_bounded_size(server, raw):
    raw.create_bucket("LARGE", max_msgs_per_subject=3)
    for number in range(30):
        raw.put("LARGE", f"k.{number}", bytes([number]) * ((1 << 20) - 100))
    read = Read(server.url, "LARGE")
    sizes = []
    for batch in read.reader.read(read.parts[0]):
        sizes.append(batch.nbytes)
        assert [set(value) for value in batch.column("value").to_pylist()] == [
            {int(key.removeprefix("k."))} for key in batch.column("key").to_pylist()
        ]
    assert sum(sizes) > 29 << 20
    assert max(sizes) < 24 << 20


@pytest.mark.parametrize("history", [1, 3])
def test_a_server_that_starts_again_in_the_middle_of_a_read_changes_nothing(own_server, unique, history):
    name = unique()
    filled(own_server, name, history)
    for options in ({}, {"mode": "changes"}):
        read = Read(own_server.url, name, columns="key,value", **options)
        batches = read.reader.read(read.parts[0])
        rows = next(batches).to_pylist()
        assert len(rows) < MANY
        own_server.restart()
        rows += [row for batch in batches for row in batch.to_pylist()]
        assert differences(sorted(int(row["key"][2:]) for row in rows), range(MANY)) == []
        assert all(row["value"] == b"%d" % int(row["key"][2:]) * 20 for row in rows)


@pytest.mark.slow
def test_a_server_that_does_not_come_back_is_an_error_of_ours(own_server, unique):
    name = unique()
    filled(own_server, name)
    read = Read(own_server.url, name, timeout="500ms")
    batches = read.reader.read(read.parts[0])
    next(batches)
    own_server.kill()
    with pytest.raises(KvctlError) as gone:
        list(batches)
    assert gone.value.exit_code in (1, 5)


@pytest.mark.parametrize("request_", [b"STREAM.INFO.KV_", b"CONSUMER.CREATE.KV_"])
def test_a_request_without_an_answer_is_sent_again(server, unique, request_):
    name = unique()
    filled(server, name, count=3)
    with Proxy(server.url) as proxy:
        proxy.on(request_, LoseAnswer())
        assert len(Read(proxy.url, name, timeout="500ms").rows()) == 3


def test_a_server_that_is_too_slow_is_an_error_that_names_the_timeout(server, unique):
    name = unique()
    filled(server, name, count=3)
    with Proxy(server.url) as proxy:
        proxy.on(b"STREAM.INFO.KV_", LoseAnswer(), times=None)
        with pytest.raises(RequestTimeout, match=r"within 0\.3s") as late:
            Read(proxy.url, name, timeout="300ms")
    assert "`--timeout 60s`" in str(late.value.hint)


@pytest.mark.parametrize(("given", "seconds"), [({}, 30), ({"timeout": "7s"}, 7)])
def test_jobs_wait_for_half_a_minute_unless_told_otherwise(monkeypatch, given, seconds):
    monkeypatch.delenv("NATS_TIMEOUT", raising=False)
    options = parse({"url": "nats://127.0.0.1", "bucket": "B", **given})
    assert context_of(options).timeout == timedelta(seconds=seconds)
    monkeypatch.setenv("NATS_TIMEOUT", "9s")
    assert context_of(options).timeout == timedelta(seconds=seconds if given else 9)


def test_a_bucket_made_anew_under_a_read_is_an_error(server, raw, unique):
    name = unique()
    filled(server, name, count=3)
    read = Read(server.url, name)
    raw.api(f"STREAM.DELETE.KV_{name}")
    filled(server, name, count=3)
    with pytest.raises(StreamReplaced, match=f"Bucket `{name}` was deleted and recreated"):
        read.rows()


def test_foreign_keys_are_rows_too(server, raw, unique):
    name = unique()
    raw.create_bucket(name, max_msgs_per_subject=2)
    keys = ["plain", "ä", "a%b", "\udcff.x"]
    for key in keys:
        raw.put(name, key, b"1")
    assert set(latest(server.url, name)) == {"plain", "ä", "a%b", "\\xff.x"}


def test_a_bucket_of_another_domain_is_read_through_this_one(leaf, unique):
    """Its messages come with longer reply subjects."""
    name = unique()
    with RawClient(leaf.servers["hub"].url) as raw:
        raw.create_bucket(name, {f"k.{number}": b"%d" % number for number in range(5)})
    url = leaf.contexts["hub-via-leaf"].url
    rows = Read(url, name, domain="hub").rows()
    assert [(row["key"], row["value"], row["revision"]) for row in rows] == [
        (f"k.{number}", b"%d" % number, number + 1) for number in range(5)
    ]
    with RawClient(leaf.servers["hub"].url) as raw:
        for row in rows:
            sent = raw.api(f"STREAM.MSG.GET.KV_{name}", {"seq": row["revision"]})["message"]["time"]
            assert sent.startswith(row["created"].strftime("%Y-%m-%dT%H:%M:%S."))


def test_closed_early_it_takes_its_consumer_along(server, raw, unique):
    name = unique()
    filled(server, name)
    read = Read(server.url, name)
    batches = read.reader.read(read.parts[0])
    next(batches)
    assert raw.api(f"CONSUMER.NAMES.KV_{name}")["total"] == 1
    batches.close()  # type: ignore[attr-defined]
    until(lambda: raw.api(f"CONSUMER.NAMES.KV_{name}")["total"] == 0, what="the consumer's end")


def test_columns_that_are_null_in_a_users_schema_are_right_all_the_same(server, raw):
    raw.create_bucket("NULLABLE", {"a": b"1"})
    schema = StructType([StructField("key", StringType(), True)])
    reader = KvReader(schema, parse({"url": server.url, "bucket": "NULLABLE"}))
    [batch] = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert (batch.schema.field("key").nullable, batch.to_pylist()) == (True, [{"key": "a"}])
