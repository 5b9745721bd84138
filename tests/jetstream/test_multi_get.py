"""Many messages by direct get: pages, one moment, limits, and times."""

import asyncio
from contextlib import suppress

import pytest

import kvctl
from kvctl import Client
from kvctl.errors import NoResponders, StreamNotFound
from kvctl.jetstream import direct_get, multi_get, streams
from kvctl.jetstream.api import Api
from kvctl.jetstream.direct_get import DirectRequest, StoredMessage, TooManySubjects
from kvctl.jetstream.multi_get import MessagePage, MomentLost, NotReached, last_of_each
from kvctl.server import run_server
from kvctl.units import parse_utc
from tests.support.proxy import DOWN, UP, Cut, Proxy
from tests.support.raw import RawClient
from tests.support.waiting import until


@pytest.fixture(params=["file", "memory"])
def stream(request, raw, bucket_name):
    """A bucket's stream with keys k.0 to k.9, written twice, in either storage."""
    return filled(raw, bucket_name, storage=request.param)


def filled(raw: RawClient, bucket: str, **config: object) -> str:
    raw.create_bucket(bucket, **{"max_msgs_per_subject": 5, **config})
    for number in range(20):
        raw.put(bucket, f"k.{number % 10}", b"%d" % number)
    return f"KV_{bucket}"


def subject(stream: str, key: str) -> str:
    return f"$KV.{stream.removeprefix('KV_')}.{key}"


async def pages_of(client: Client, stream: str, *keys: str, **fields: int | str) -> list[MessagePage]:
    request = DirectRequest(last_of=tuple(subject(stream, key) for key in keys), **fields)  # type: ignore[arg-type]
    return [page async for page in multi_get.read(client.api, stream, request)]


def messages_of(pages: list[MessagePage]) -> list[StoredMessage]:
    return [message for page in pages for message in page.messages]


def sequences(pages: list[MessagePage]) -> list[int]:
    return [message.sequence for message in messages_of(pages)]


@pytest.fixture(params=[False, True], ids=["nearest", "leader"])
def leader(request):
    return bool(request.param)


class TestBatches:
    async def test_come_in_order_from_where_they_were_asked(self, client, stream):
        fifth = await multi_get.one(client.api, stream, DirectRequest(sequence=5))
        k0 = subject(stream, "k.0")
        for request, expected in (
            (DirectRequest(sequence=3, batch=4), [3, 4, 5, 6]),
            (DirectRequest(batch=2), [1, 2]),
            (DirectRequest(sequence=18, batch=9), [18, 19, 20]),
            (DirectRequest(sequence=99, batch=9), []),
            (DirectRequest(next_for=k0, batch=9), [1, 11]),
            (DirectRequest(next_for=k0, sequence=2, batch=9), [11]),
            (DirectRequest(next_for=subject(stream, "none"), batch=9), []),
            (DirectRequest(start_time_ns=fifth.time_ns, batch=2), [5, 6]),
            (DirectRequest(start_time_ns=fifth.time_ns, next_for=k0, batch=2), [11]),
        ):
            pages = [page async for page in multi_get.read(client.api, stream, request)]
            assert sequences(pages) == expected, request

    async def test_tell_what_is_left_and_what_came_before(self, client, stream):
        request = DirectRequest(sequence=3, batch=4)
        [page] = [page async for page in multi_get.read(client.api, stream, request)]
        assert (page.pending, page.last_sequence, page.up_to_sequence) == (14, 6, None)
        told = [(message.pending, message.last_sequence) for message in page.messages]
        assert told == [(17, 0), (16, 3), (15, 4), (14, 5)]

    async def test_a_size_ends_the_first_page(self, client, stream):
        request = DirectRequest(sequence=1, batch=10, max_bytes=1)
        pages = [page async for page in multi_get.read(client.api, stream, request)]
        assert sequences(pages) == [1]

    async def test_larger_than_an_answer_they_go_on_in_the_next(self, client, raw, stream, monkeypatch):
        monkeypatch.setattr(multi_get, "ANSWER_BYTES", 10)
        request = DirectRequest(sequence=1, batch=15)
        pages = [page async for page in multi_get.read(client.api, stream, request)]
        assert len(pages) > 3
        assert sequences(pages) == list(range(1, 16))
        assert [message.pending for message in messages_of(pages)] == list(range(19, 4, -1))


class TestLastOfMany:
    async def test_come_in_order_each_subject_once(self, client, stream):
        [page] = await pages_of(client, stream, "k.*")
        assert [message.payload for message in page.messages] == [b"%d" % number for number in range(10, 20)]
        assert (page.pending, page.last_sequence, page.up_to_sequence) == (0, 20, 20)
        told = [(message.pending, message.last_sequence) for message in page.messages]
        assert told == [(9 - at, 10 + at if at else 0) for at in range(10)]
        assert sequences(await pages_of(client, stream, "k.7", "k.*", "none", "k.2")) == [*range(11, 21)]
        assert sequences(await pages_of(client, stream, "k.7", "k.2")) == [13, 18]
        assert sequences(await pages_of(client, stream, "none", "neither.*")) == []

    async def test_last_messages_as_of_a_sequence(self, client, stream):
        for up_to, expected in ((20, range(11, 21)), (13, [4, 5, 6, 7, 8, 9, 10, 11, 12, 13]), (2, [1, 2])):
            pages = await pages_of(client, stream, "k.*", up_to_sequence=up_to)
            assert sequences(pages) == list(expected)
            assert pages[-1].up_to_sequence == up_to
        assert sequences(await pages_of(client, stream, "k.5", "k.*", up_to_sequence=2)) == [1, 2]
        assert sequences(await pages_of(client, stream, "k.5", up_to_sequence=2)) == []

    async def test_last_messages_as_of_a_time_include_its_own_message(self, client, stream):
        second = await multi_get.one(client.api, stream, DirectRequest(sequence=2))
        for moment, expected in (
            (second.time_ns, [1, 2]),
            (second.time_ns - 1, [1]),
            (1, []),
            (4 * 10**18, [*range(11, 21)]),
        ):
            pages = await pages_of(client, stream, "k.*", up_to_time_ns=moment)
            assert sequences(pages) == expected

    async def test_a_sequence_that_is_not_reached_is_said(self, raw, client, bucket_name):
        stream = filled(raw, bucket_name)
        with pytest.raises(NotReached, match="is at sequence 20 and has not reached 21"):
            await pages_of(client, stream, "k.*", up_to_sequence=21)

    async def test_a_batch_and_a_size_cut_them(self, client, stream):
        [page] = await pages_of(client, stream, "k.*", batch=3)
        assert (sequences([page]), page.pending, page.last_sequence) == ([11, 12, 13], 7, 13)
        [page] = await pages_of(client, stream, "k.*", sequence=14, up_to_sequence=20, batch=5)
        assert (sequences([page]), page.pending, page.last_sequence) == ([14, 15, 16, 17, 18], 2, 18)
        [page] = await pages_of(client, stream, "k.*", max_bytes=1)
        assert (sequences([page]), page.pending) == ([11], 9)

    @pytest.mark.guarantee("reading-3")
    async def test_pages_are_of_one_moment(self, client, raw, stream, monkeypatch):
        monkeypatch.setattr(multi_get, "ANSWER_BYTES", 10)
        request = DirectRequest(last_of=(subject(stream, "k.*"),))
        pages: list[MessagePage] = []
        async for page in multi_get.read(client.api, stream, request):
            if not pages:
                for key in ("k.0", "k.9", "k.new"):
                    raw.put(stream.removeprefix("KV_"), key, b"later")
            pages.append(page)
        assert len(pages) > 2
        assert [message.payload for message in messages_of(pages)] == [b"%d" % number for number in range(10, 20)]
        assert {page.up_to_sequence for page in pages} == {20}

    @pytest.mark.guarantee("reading-3")
    async def test_messages_overwritten_before_they_are_read_are_reported(self, client, raw, bucket_name, monkeypatch):
        stream = filled(raw, bucket_name, max_msgs_per_subject=1)
        monkeypatch.setattr(multi_get, "ANSWER_BYTES", 10)
        request = DirectRequest(last_of=(subject(stream, "k.*"),))
        pages = multi_get.read(client.api, stream, request)
        await anext(pages)
        raw.put(bucket_name, "k.9", b"later")
        with pytest.raises(MomentLost):
            [page async for page in pages]


class TestLimits:
    async def test_more_than_a_thousand_matches_are_too_many_for_one_answer(self, client, bucket_name):
        bucket, stream = await client.create_bucket(bucket_name), f"KV_{bucket_name}"
        await bucket.put_many((str(number), b"") for number in range(1025))
        request = DirectRequest(last_of=(subject(stream, "*"),))
        with pytest.raises(TooManySubjects):
            [page async for page in multi_get.read(client.api, stream, request)]
        assert len(sequences(await pages_of(client, stream, *(str(number) for number in range(1024))))) == 1024

    async def test_large_messages_come_in_several_answers(self, client, raw, bucket_name):
        stream = filled(raw, bucket_name)
        for number in range(10):
            raw.put(bucket_name, f"large.{number}", b"x" * 1_000_000)
        pages = await pages_of(client, stream, "large.*")
        assert [len(page.messages) for page in pages] == [9, 1]
        assert sequences(pages) == list(range(21, 31))

    async def test_stream_without_direct_get_has_no_responders(self, raw, client, bucket_name):
        for stream in (filled(raw, bucket_name, allow_direct=False), "KV_NONE"):
            with pytest.raises(NoResponders):
                await pages_of(client, stream, "k.*")


class TestLastOfEach:
    async def test_each_of_thousands_has_its_answer(self, client, stream, leader):
        subjects = [subject(stream, f"k.{number}") for number in range(3000)]
        found = await multi_get.last_of_each(client.api, stream, subjects, leader=leader)
        answers = [found[subject] for subject in subjects]
        assert [message and message.sequence for message in answers] == [*range(11, 21), *[None] * 2990]

    async def test_nobody_answers_for_what_is_not_there(self, raw, client, bucket_name):
        raw.create_bucket(bucket_name, allow_direct=False)
        for stream in (f"KV_{bucket_name}", "KV_NONE"):
            assert await multi_get.last_of_each(client.api, stream, ["a", "b"]) == {}
        with pytest.raises(StreamNotFound):
            await multi_get.last_of_each(client.api, "KV_NONE", ["a"], leader=True)


class TestFirstSince:
    """The sequence at which a time begins, also with servers that know no requests by time, or answer too late."""

    @pytest.mark.parametrize("leader", [False, True])
    @pytest.mark.parametrize("hint", ["server", "none", "late"])
    async def test_first_sequence_is_found_between_gaps(self, raw, client, bucket_name, hint, leader, monkeypatch):
        stream = filled(raw, bucket_name, max_msgs_per_subject=1, deny_delete=False)
        raw.api(f"STREAM.MSG.DELETE.{stream}", {"seq": 15})
        found = messages_of(await pages_of(client, stream, "k.*"))
        times = {message.sequence: message.time_ns for message in found}

        async def answer(*_: object, **__: object) -> StoredMessage | None:
            return found[-1] if hint == "late" else None

        if hint != "server":
            monkeypatch.setattr(multi_get, "_server_first", answer)
        for moment, expected in (
            (times[14], 14),
            (times[14] + 1, 16),
            (times[16], 16),
            (times[20], 20),
            (times[20] + 1, 21),
            (0, 11),
            (4 * 10**18, 21),
        ):
            if hint != "late" or expected <= found[-1].sequence:
                assert await multi_get.first_since(client.api, stream, moment, leader=leader) == expected

    async def test_end_of_a_lagging_replica_is_no_beginning(self, client, stream, monkeypatch):
        """Each of several requests may reach another replica; here some reach one that ends at 15."""
        times = {message.sequence: message.time_ns for message in messages_of(await pages_of(client, stream, "k.*"))}
        get, lagging = multi_get.get, {"last_by_subj"}

        async def lagged(api: Api, stream: str, request: DirectRequest, **how: bool) -> StoredMessage | None:
            if lagging.isdisjoint(request.body()):
                return await get(api, stream, request, **how)
            return await get(api, stream, DirectRequest(sequence=15)) if request.last_for else None

        monkeypatch.setattr(multi_get, "get", lagged)
        for start, found in ((14, [*range(14, 21)]), (19, [19, 20])):
            since = DirectRequest(start_time_ns=times[start], batch=100)
            assert sequences([page async for page in multi_get.read(client.api, stream, since)]) == found
        lagging.add("start_time")
        assert sequences([page async for page in multi_get.read(client.api, stream, since)]) == []

    @pytest.mark.parametrize("leader", [False, True])
    async def test_no_message_is_passed_over_beside_an_emptied_file(self, emptied, leader):
        """nats-server 2.15 finds a start too late here: after messages 41 to 83 for all that are older."""
        url, times = emptied
        past = DirectRequest(last_of=("S.>",), up_to_time_ns=times[19])
        async with kvctl.connect(url) as client:
            for start, expected in ((1, 1), (20, 20), (41, 84), (84, 84), (90, 90)):
                assert await multi_get.first_since(client.api, "S", times[start], leader=leader) == expected
                since = DirectRequest(start_time_ns=times[start], batch=1)
                assert sequences([page async for page in multi_get.read(client.api, "S", since)]) == [expected]
            held = sequences([page async for page in multi_get.read(client.api, "S", past)])
            assert held == [1, 2, *range(4, 20)]


_SYNC = """
port: @client@
server_name: @name@
jetstream: { store_dir: "@store@", sync_interval: "100ms" }
"""


@pytest.fixture(scope="module")
def emptied():
    """URL of a server with stream S in three files, the second without messages; and the times of the messages."""
    with run_server(name="emptied", config=_SYNC) as server, RawClient(server.url) as raw:
        raw.create_stream("S", subjects=["S.>"], allow_direct=True)
        times = {}
        for number in range(1, 91):
            raw.request(f"S.{number}", bytes(200_000))  # 41 fill a file
            times[number] = parse_utc(raw.api("STREAM.MSG.GET.S", {"seq": number})["message"]["time"])
            if number == 60:  # the second file records this deletion, and so it stays
                raw.api("STREAM.MSG.DELETE.S", {"seq": 3, "no_erase": True})
        for number in range(41, 84):
            raw.api("STREAM.MSG.DELETE.S", {"seq": number, "no_erase": True})
        [file] = server.store.glob("**/2.blk")
        until(lambda: file.stat().st_size < 1000)
        yield server.url, times


class TestReplicas:
    """Whichever replica answers: the same messages under the same numbers."""

    @pytest.fixture(params=["three replicas", "mirror"])
    async def replicated(self, request, cluster, unique):
        """Connected to a cluster, a bucket's stream as above, and the streams that answer."""
        async with kvctl.connect(cluster.contexts["cluster"]) as client:
            three, name = request.param == "three replicas", unique()
            bucket = await client.create_bucket(name, history=5, replicas=3 if three else 1)
            answering = {f"KV_{name}"}
            if not three:
                answering.add(f"M{name}")
                config = {"mirror": {"name": f"KV_{name}"}, "mirror_direct": True, "allow_direct": True}
                await streams.create(client.api, {"name": f"M{name}", "max_msgs_per_subject": 5, **config})
            await bucket.put_many((f"k.{number % 10}", b"%d" % number) for number in range(20))
            async with asyncio.timeout(60):
                while await _answering(client, f"KV_{name}") != answering:
                    await asyncio.sleep(0.05)
            yield client, f"KV_{name}", answering

    async def test_every_form_has_one_answer(self, replicated):
        client, stream, answering = replicated
        fifth = await multi_get.one(client.api, stream, DirectRequest(sequence=5))
        k = (subject(stream, "k.*"),)
        seen = set()
        for request, expected in (
            (DirectRequest(sequence=3, batch=4), [3, 4, 5, 6]),
            (DirectRequest(next_for=subject(stream, "k.0"), batch=9), [1, 11]),
            (DirectRequest(start_time_ns=fifth.time_ns, batch=2), [5, 6]),
            (DirectRequest(last_of=k), [*range(11, 21)]),
            (DirectRequest(last_of=k, up_to_sequence=13), [*range(4, 14)]),
            (DirectRequest(last_of=k, up_to_time_ns=fifth.time_ns), [1, 2, 3, 4, 5]),
            (DirectRequest(last_of=k, batch=3), [11, 12, 13]),
        ):
            for _ in range(12):
                pages = [page async for page in multi_get.read(client.api, stream, request)]
                assert sequences(pages) == expected, request
                seen.update(message.stream for message in messages_of(pages))
        assert seen == answering


async def _answering(client: Client, stream: str) -> set[str]:
    """The streams that answer for the last key, each of which has come to it."""
    found = [await direct_get.last(client.api, stream, subject(stream, "k.9")) for _ in range(30)]
    return {message.stream for message in found if message} if all(m and m.sequence == 20 for m in found) else set()


class TestReplicaThatHoldsLess:
    """A mirror answers direct gets of its origin; one that lags behind, or lost messages, must not end a reading."""

    @pytest.fixture
    def emptied(self, raw, bucket_name):
        """A bucket's stream of 300 messages of 40 kB, more than an answer holds, whose mirror holds none of them."""
        raw.create_bucket(bucket_name)
        raw.create_bucket(f"M{bucket_name}", subjects=[], mirror={"name": f"KV_{bucket_name}"}, mirror_direct=True)
        for number in range(300):
            raw.put(bucket_name, f"k.{number}", b"x" * 40_000)
        mirror = f"KV_M{bucket_name}"
        until(lambda: raw.api(f"STREAM.INFO.{mirror}")["state"]["last_seq"] == 300)
        raw.api(f"STREAM.PURGE.{mirror}")
        return f"KV_{bucket_name}"

    @pytest.mark.parametrize("last", [False, True], ids=["batch", "last of subjects"])
    async def test_reading_that_began_elsewhere_is_complete_or_fails(self, client, emptied, last):
        request = DirectRequest(last_of=("$KV.>",)) if last else DirectRequest(sequence=1, batch=1000)
        complete = 0
        for _ in range(20):
            pages: list[MessagePage] = []
            with suppress(MomentLost):
                async for page in multi_get.read(client.api, emptied, request):
                    pages.append(page)
                if pages[0].messages:  # the bucket itself answered the first request
                    assert sequences(pages) == list(range(1, 301))
                    complete += 1
        assert complete

    async def test_callers_of_pages_are_told_of_a_moment_lost(self, client, emptied):
        bucket = client.bucket(emptied.removeprefix("KV_"))
        for _ in range(20):
            entries = [entry async for batch in bucket.get_matching(">") for entry in batch]
            assert len({entry.key for entry in entries}) == len(entries)
            assert len(entries) in {0, 300}


KEYS = 17


@pytest.mark.parametrize("count", [1, KEYS])
@pytest.mark.parametrize("leader", [True, False])
async def test_a_cut_connection_loses_no_answer(server, raw, bucket_name, count, leader):
    raw.create_bucket(bucket_name, {f"k.{number}": b"%d" % number for number in range(KEYS)})
    subjects = [f"$KV.{bucket_name}.k.{number}" for number in range(count)]
    with Proxy(server.url) as proxy:
        async with kvctl.connect(proxy.url) as client:
            cut = proxy.on(f"{bucket_name}.k.{count - 1}".encode(), Cut(), way=UP if leader else DOWN)
            found = await last_of_each(client.api, f"KV_{bucket_name}", [*subjects, "$KV.none"], leader=leader)
            assert cut.seen.is_set()
    values = {subject: one and one.payload for subject, one in found.items()}
    assert values == {**{subject: b"%d" % number for number, subject in enumerate(subjects)}, "$KV.none": None}
