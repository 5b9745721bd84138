"""A read is of one revision, whatever is written before its tasks come to it; or it says that it cannot be."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvctl.errors import HistoryLost
from kvctl.pipeline.read.offsets import Revisions
from kvctl.pipeline.read.snapshot_plan import cut_by_count, probes, runs
from tests.pipeline.reading import Read
from tests.support.proxy import DOWN, Proxy
from tests.support.raw import RawClient


@given(st.sets(st.integers(1, 500), min_size=1), st.integers(1, 20), st.integers(0, 50))
def test_ranges_cover_every_message_once(held, parts, beyond):
    first, last = 1, 500 + beyond
    starts = probes(first, last, parts)
    left = [sum(1 for revision in held if revision >= start) for start in starts]
    found = cut_by_count(starts, left, last, parts)
    assert 1 <= len(found) <= parts
    assert all(before.last < after.first for before, after in pairwise(found))
    for part in found:
        assert part.expected == sum(1 for revision in held if part.first <= revision <= part.last) > 0
    assert sum(part.expected or 0 for part in found) == len(held)


def test_ranges_are_even_where_the_messages_are():
    starts = probes(1, 1000, 4)
    assert (starts[0], len(starts)) == (1, 16)
    held = range(501, 1001)
    left = [sum(1 for revision in held if revision >= start) for start in starts]
    assert [part.expected for part in cut_by_count(starts, left, 1000, 4)] == [125, 125, 125, 125]


def test_nothing_is_cut_into_nothing():
    assert cut_by_count([1, 2], [0, 0], 2, 3) == []
    assert cut_by_count([5], [1], 9, 3) == [Revisions(5, 9, 1)]


@given(st.lists(st.integers(1, 100)), st.integers(1, 10))
def test_runs_keep_the_order_and_share_the_weight(weights, parts):
    items = list(range(len(weights)))
    found = runs(items, weights, parts)
    assert [item for run in found for item in run] == items
    assert all(found)
    assert len(found) <= parts
    heaviest = max((sum(weights[item] for item in run) for run in found), default=0)
    assert heaviest <= sum(weights) / parts + 2 * max(weights, default=0)


PUT, DEL, PURGE = "PUT", "DEL", "PURGE"
_names = count(1)


@dataclass
class Oracle:
    """A bucket, written through this, and what it was after each revision."""

    raw: RawClient
    bucket: str
    history: int
    log: list[tuple[int, str, str, bytes]] = field(default_factory=list)
    """Revision, key, operation, value."""

    def write(self, key: str, operation: str = PUT) -> None:
        headers = {} if operation == PUT else {"KV-Operation": operation}
        if operation == PURGE:
            headers["Nats-Rollup"] = "sub"
        value = b"%d" % len(self.log) if operation == PUT else b""
        self.log.append((self.raw.put(self.bucket, key, value, headers or None), key, operation, value))

    def held(self, cut: int | None = None) -> dict[str, list[tuple[int, str, bytes]]]:
        """Return the bucket's state right after a revision, or now."""
        keys: dict[str, list[tuple[int, str, bytes]]] = {}
        for revision, key, operation, value in self.log:
            if cut is None or revision <= cut:
                held = [] if operation == PURGE else keys.get(key, [])
                keys[key] = [*held, (revision, operation, value)][-self.history :]
        return keys

    def latest(self, cut: int) -> dict[str, tuple[int, bytes]]:
        """The living keys right after a revision."""
        last = {key: entries[-1] for key, entries in self.held(cut).items()}
        return {key: (revision, value) for key, (revision, operation, value) in last.items() if operation == PUT}


def oracle(raw: RawClient, history: int) -> Oracle:
    bucket = f"CUT{next(_names)}"
    raw.create_bucket(bucket, max_msgs_per_subject=history)
    return Oracle(raw, bucket, history)


def found(read: Read) -> dict[str, tuple[int, bytes]]:
    rows = read.rows()
    assert len({row["key"] for row in rows}) == len(rows), "a key came twice"
    return {row["key"]: (row["revision"], row["value"] or b"") for row in rows}


WRITES = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c.x", "c.y", "d"]), st.sampled_from([PUT, PUT, PUT, DEL, PURGE]))
)


@pytest.mark.guarantee("pipeline-8")
@settings(max_examples=40, deadline=None)
@given(before=WRITES, after=WRITES, history=st.integers(1, 3), apart=st.booleans(), said=st.booleans())
def test_each_key_is_as_it_was_at_the_cut_or_newer_where_that_is_gone(server, before, after, history, apart, said):
    """`apart`: in several tasks; `said`: the cut is not the last revision, but one that was asked for later."""
    with RawClient(server.url) as raw:
        bucket = oracle(raw, history)
        bucket.write("first")
        for key, operation in before:
            bucket.write(key, operation)
        shares = {"filter": "*,c.>", "partitions": "2"} if apart else {}
        read = Read(server.url, bucket.bucket, **shares)
        cut = read.cut
        for key, operation in after:
            bucket.write(key, operation)
        if said:
            read = Read(server.url, bucket.bucket, asOf=str(cut), **shares)
        rows, then, now = found(read), bucket.held(cut), bucket.held()
    gone = {key for key, entries in then.items() if entries[-1] not in now[key]}
    new = now.keys() - then.keys()
    for key, entries in then.items():
        revision, operation, value = entries[-1] if key not in gone else now[key][-1]
        assert rows.get(key) == ((revision, value) if operation == PUT else None)
    assert rows.keys() <= then.keys() | (new if gone or said else set())


@pytest.mark.guarantee("pipeline-8")
@settings(max_examples=30, deadline=None)
@given(before=WRITES, after=WRITES, history=st.integers(1, 3))
def test_a_history_is_as_it_was_at_the_cut_and_goes_on_where_that_is_gone(server, before, after, history):
    with RawClient(server.url) as raw:
        bucket = oracle(raw, history)
        bucket.write("first")
        for key, operation in before:
            bucket.write(key, operation)
        read = Read(server.url, bucket.bucket, mode="history")
        for key, operation in after:
            bucket.write(key, operation)
        rows = [(row["key"], row["revision"], row["operation"]) for row in read.rows()]
        then, now = bucket.held(read.cut), bucket.held()
    assert len(set(rows)) == len(rows)
    gone = {key for key, entries in then.items() if any(entry not in now[key] for entry in entries)}
    for key, entries in now.items():
        read_of = [row for row in rows if row[0] == key]
        all_there_is = [(key, revision, operation) for revision, operation, _ in entries]
        as_it_was = [row for row in all_there_is if row[1] <= read.cut]
        # Of a key that is full nobody can tell whether it lost something, if others did.
        unsure = gone and (len(entries) == history or any(row[2] == PURGE for row in all_there_is))
        assert read_of == all_there_is if key in gone else read_of in (as_it_was, all_there_is if unsure else as_it_was)


@pytest.mark.guarantee("pipeline-8")
@pytest.mark.parametrize("mode", ["latest", "history"])
@pytest.mark.parametrize("tasks", ["1", "3"])
def test_a_read_that_is_to_fail_is_exact_or_fails(server, raw, mode, tasks):
    bucket = oracle(raw, 1)
    for number in range(60):
        bucket.write(f"k.{number}")
    exact = Read(server.url, bucket.bucket, mode=mode, onEvicted="fail", partitions=tasks)
    assert len(exact.parts) == int(tasks)
    bucket.write("new")
    assert found(exact) == bucket.latest(exact.cut)
    short = Read(server.url, bucket.bucket, mode=mode, onEvicted="fail", partitions=tasks)
    bucket.write("k.30")
    with pytest.raises(HistoryLost, match=f"at revision {short.cut} 1 entries could no longer be read"):
        short.rows()


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize(("mode", "tasks"), [("latest", 32), ("changes", 4), ("changes", 32)])
def test_a_divided_read_is_sent_hardly_more_messages_than_rows(server, raw, gaps, mode, tasks):
    bucket = oracle(raw, 1)
    for number in range(2999):
        raw.publish(f"$KV.{bucket.bucket}.k{2 * number % 2000 if gaps and number > 1999 else number}", b"x")
    raw.put(bucket.bucket, "k1998" if gaps else "k2999", b"x")
    sent = 0

    def counted(frame: bytes) -> None:
        nonlocal sent
        sent += 1

    with Proxy(server.url) as proxy:
        proxy.on(b"MSG ", counted, way=DOWN, times=None)
        read = Read(proxy.url, bucket.bucket, mode=mode, onEvicted="fail", partitions=str(tasks))
        assert len(read.parts) == tasks
        planned = sent
        rows = read.rows()
    assert len(rows) == (2000 if gaps else 3000)
    assert (
        sent - planned <= 1.2 * len(rows) + 10 * tasks
    )  # answers to requests, whose number depends on the tasks alone
    assert planned <= (4 * 64 + 10 if gaps else 10)


def test_keys_that_went_are_named_where_a_task_has_them_for_itself(server, raw):
    bucket = oracle(raw, 2)
    for key in ("a", "b", "a"):
        bucket.write(key)
    read = Read(server.url, bucket.bucket, onEvicted="fail")
    bucket.write("a")
    assert found(read) == bucket.latest(3)
    bucket.write("a", PURGE)
    with pytest.raises(HistoryLost, match="`a` could no longer be read") as lost:
        read.rows()
    assert lost.value.keys == ["a"]


@pytest.mark.guarantee("pipeline-7", by="race")
def test_busy_writers_change_nothing_of_what_was(server, raw):
    bucket = oracle(raw, 64)
    for number in range(300):
        bucket.write(f"k.{number}")
    with _writing(
        server.url, bucket, lambda number: (f"k.{number * 7 % 320}", DEL if number % 5 == 0 else PUT)
    ) as written:
        for _ in range(4):
            written(10)
            reads = [Read(server.url, bucket.bucket), Read(server.url, bucket.bucket, mode="history")]
            written(100)
            rows = [found(reads[0]), sorted((row["key"], row["revision"]) for row in reads[1].rows())]
            assert rows[0] == bucket.latest(reads[0].cut)
            held = bucket.held(reads[1].cut)
            assert rows[1] == sorted((key, entry[0]) for key, entries in held.items() for entry in entries)


def test_busy_writers_without_history_give_each_key_once(server, raw):
    bucket = oracle(raw, 1)
    for number in range(300):
        bucket.write(f"k.{number}")
    with _writing(
        server.url, bucket, lambda number: (f"k.{number * 7 % 300}", DEL if number % 5 == 0 else PUT)
    ) as written:
        for _ in range(4):
            read = Read(server.url, bucket.bucket)
            written(100)
            rows = found(read)
            then = bucket.latest(read.cut)
            written(1)  # what was read has an entry in the log
            values = {revision: (key, value) for revision, key, operation, value in bucket.log if operation == PUT}
            assert all(values[revision] == (key, value) for key, (revision, value) in rows.items())
            assert all(
                then.get(key) == (revision, value) or revision > read.cut for key, (revision, value) in rows.items()
            )
            deleted = {key for revision, key, operation, _ in bucket.log if operation == DEL and revision > read.cut}
            assert then.keys() - rows.keys() <= deleted


def test_busy_writers_hide_no_changes(server, raw):
    bucket = oracle(raw, 64)
    for number in range(300):
        bucket.write(f"k.{number}")
    with _writing(server.url, bucket, lambda number: (f"k.{number * 7 % 320}", PUT)) as written:
        for tasks in ("1", "4", "7"):
            written(10)
            read = Read(server.url, bucket.bucket, mode="changes", fromRevision="50", partitions=tasks)
            rows = sorted(row["revision"] for row in read.rows())
            assert rows == list(range(50, read.cut + 1))


@pytest.mark.guarantee("pipeline-7")
def test_what_was_acknowledged_is_read_from_any_replica(cluster, unique):
    name = unique("R3")
    url = next(iter(cluster.servers.values())).url
    with RawClient(url) as raw:
        raw.create_bucket(name, num_replicas=3, max_msgs_per_subject=2)
        for number in range(15):
            raw.put(name, f"k.{number}", b"v")
            rows = Read(url, name, columns="key,revision", mode="latest" if number % 2 else "history").rows()
            assert [row["key"] for row in rows] == [f"k.{n}" for n in range(number + 1)]


@contextmanager
def _writing(url: str, bucket: Oracle, write: Callable[[int], tuple[str, str]]) -> Iterator[Callable[[int], None]]:
    """Write continuously; the returned function waits for a number of further writes."""
    stopped, progress = threading.Event(), threading.Condition()

    def work() -> None:
        with RawClient(url) as raw:
            own = Oracle(raw, bucket.bucket, bucket.history, bucket.log)
            for number in count():
                if stopped.is_set():
                    return
                own.write(*write(number))
                with progress:
                    progress.notify_all()

    def wait(more: int) -> None:
        wanted = len(bucket.log) + more
        with progress:
            assert progress.wait_for(lambda: len(bucket.log) >= wanted, 180)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield wait
    finally:
        stopped.set()
        thread.join()
