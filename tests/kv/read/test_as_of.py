"""A bucket as it was: exactly, or a refusal that names what is lost."""

from __future__ import annotations

import asyncio
import io
import random
from collections import Counter
from datetime import datetime, timedelta
from typing import Any

import pytest

import kvctl
from kvctl import Bucket, Client
from kvctl.errors import HistoryLost, KeyNotFound, RevisionNotFound, UsageError
from kvctl.jetstream import streams
from kvctl.kv.bulk.dump_file import dump_past
from kvctl.kv.entry import Entry
from kvctl.kv.maintenance import compaction
from kvctl.kv.read.as_of import Past
from kvctl.kv.read.moment import Moment, as_moment, parse_moment
from tests.support.differences import differences
from tests.support.raw import RawClient
from tests.support.waiting import until_async

State = dict[str, bytes]


async def state(past: Past, *filters: str) -> State:
    return {entry.key: entry.value async for entry in past.entries(*filters)}


class Oracle:
    """A bucket under random operations, with every state that it had, and what its stream holds by the issue's rule."""

    def __init__(self, bucket: Bucket, raw: RawClient, history: int, keys: int, seed: int) -> None:
        self.bucket, self.raw, self.history = bucket, raw, history
        self.keys = [f"k.{number}" for number in range(keys)]
        self.random = random.Random(seed)
        self.states: list[State] = [{}]
        """By revision."""
        self.now: State = {}
        self.values: dict[int, bytes] = {}
        """By revision."""
        self.held: dict[str, list[tuple[int, str]]] = {key: [] for key in self.keys}
        """Revision and operation, oldest first."""

    async def step(self) -> None:
        key = self.random.choice(self.keys)
        kind = self.random.choices(("PUT", "DEL", "PURGE"), (6, 2, 1))[0]
        value = self.random.randbytes(3) if kind == "PUT" else b""
        headers = {} if kind == "PUT" else {"KV-Operation": kind}
        if kind == "PURGE":
            headers["Nats-Rollup"] = "sub"
            self.held[key] = []
        revision = await asyncio.to_thread(self.raw.put, self.bucket.name, key, value, headers)
        assert revision == len(self.states)
        self.held[key] = [*self.held[key], (revision, kind)][-self.history :]
        self.now = {name: one for name, one in self.now.items() if name != key}
        if kind == "PUT":
            self.now[key] = self.values[revision] = value
        self.states.append(self.now)

    def lost(self, revision: int) -> set[str]:
        """The keys whose state at the revision is lost."""
        return {
            key
            for key, held in self.held.items()
            if held and held[0][0] > revision and (len(held) == self.history or held[0][1] == "PURGE")
        }

    async def check(self, revision: int, past: Past) -> None:
        """The whole bucket, and each key alone: as the oracle says or refused, and refused for these keys only."""
        lost = self.lost(revision)
        if lost:
            with pytest.raises(HistoryLost) as caught:
                await state(past)
            assert set(caught.value.keys) == lost
        else:
            assert await state(past) == self.states[revision]
        key = self.random.choice(self.keys)
        if key in lost:
            with pytest.raises(HistoryLost, match=rf"`{key}` was at"):
                await past.get(key)
        else:
            [entry] = await past.get_many([key])
            assert (entry and entry.value) == self.states[revision].get(key)


class Removal:
    """A bucket as the oracle's, some of whose messages are removed otherwise than by its history."""

    def __init__(self, oracle: Oracle, config: dict[str, Any]) -> None:
        self.oracle, self.config = oracle, config
        self.stream, self.raw, self.random = f"KV_{oracle.bucket.name}", oracle.raw, oracle.random
        self.removed: set[int] = set()
        """Revisions that were removed."""
        self.outcomes: Counter[str] = Counter()

    def messages(self) -> dict[int, tuple[str, str]]:
        """What the stream holds: key and operation by revision."""
        return {revision: (key, kind) for key, held in self.oracle.held.items() for revision, kind in held}

    async def remove(self) -> None:
        """Remove messages in one of the ways there are."""
        before = self.messages()
        ways = [self.purge, self.purge, self.purge, self.compact, self.limit]
        way = self.random.choice(ways if self.config["deny_delete"] else [*ways, self.delete, self.delete])
        await way(before)
        listed = await streams.subjects(self.oracle.bucket.binding.api, self.stream, ">")
        left = set()
        for subject in listed:
            sequence = 0
            while (found := await self._next(subject, sequence + 1)) is not None:
                sequence = found
                left.add(found)
        self.removed |= before.keys() - left
        for key, held in self.oracle.held.items():
            self.oracle.held[key] = [one for one in held if one[0] in left]
        now = self.messages()
        last = {key: max(r for r in now if now[r][0] == key) for key in {key for key, _ in now.values()}}
        alive = {key for key, revision in last.items() if now[revision][1] == "PUT"}
        after = {}
        for key in alive:
            after[key] = self.oracle.values[last[key]]
        self.oracle.now = after

    async def _next(self, subject: str, start: int) -> int | None:
        answer = await asyncio.to_thread(
            self.raw.api, f"STREAM.MSG.GET.{self.stream}", {"seq": start, "next_by_subj": subject}
        )
        return answer["message"]["seq"] if "message" in answer else None

    async def _api(self, subject: str, body: dict[str, Any]) -> None:
        answer = await asyncio.to_thread(self.raw.api, f"{subject}.{self.stream}", body)
        assert "error" not in answer, answer

    async def purge(self, before: dict[int, tuple[str, str]]) -> None:
        end = len(self.oracle.states)
        body: dict[str, Any] = self.random.choice(
            [{}, {"seq": self.random.randint(1, end)}, {"keep": self.random.randrange(4)}]
        )
        if self.random.random() < 0.6:
            body["filter"] = f"$KV.{self.oracle.bucket.name}.{self.random.choice(self.oracle.keys)}"
        await self._api("STREAM.PURGE", body)

    async def compact(self, _: dict[int, tuple[str, str]]) -> None:
        await compaction.remove(self.oracle.bucket, await compaction.find(self.oracle.bucket))

    async def limit(self, before: dict[int, tuple[str, str]]) -> None:
        most = max(len(before) - self.random.randrange(4), 1)
        age = {"max_age": 200_000_000, "duplicate_window": 200_000_000}
        limit = self.random.choice([{"max_msgs": most}, {"max_bytes": most * 70}, age])
        await self._api("STREAM.UPDATE", {**self.config, "discard": "old", **limit})
        if limit is age:
            await asyncio.sleep(self.random.choice([0.1, 0.4]))
        await self._api("STREAM.UPDATE", self.config)

    async def delete(self, before: dict[int, tuple[str, str]]) -> None:
        for revision in self.random.sample(sorted(before), min(len(before), self.random.choice([1, 1, 3]))):
            await self._api("STREAM.MSG.DELETE", {"seq": revision, "no_erase": True})

    async def check(self, revision: int) -> None:
        """Right, refused, or with a caveat; the last two only where the history does not explain what is missing."""
        oracle, held = self.oracle, self.messages()
        lost, missing = oracle.lost(revision), {one for one in range(1, revision + 1) if one not in held}
        newest = max(
            (
                some[0][0]
                for some in oracle.held.values()
                if some and (len(some) >= oracle.history or some[0][1] == "PURGE")
            ),
            default=0,
        )
        removed = {one for one in missing if one > newest}
        assert self.removed or not removed
        past = await oracle.bucket.as_of(revision)
        if lost or revision in removed:
            with pytest.raises(HistoryLost) as caught:
                await state(past)
            assert set(caught.value.keys) == lost
            outcome = "lost"
        else:
            found = await state(past)
            assert (past.caveat is not None) == bool(removed)
            outcome = "caveat" if past.caveat else "right" if found == oracle.states[revision] else "unseen"
            if self.config["deny_delete"]:
                assert found.items() <= oracle.states[revision].items()
        if outcome == "unseen":
            assert missing
            assert self.removed
        self.outcomes[outcome] += 1
        key = self.random.choice(oracle.keys)
        past = await oracle.bucket.as_of(revision)
        if revision in removed or key in lost:
            with pytest.raises(HistoryLost):
                await state(past, key)
        else:
            await state(past, key)
            assert (past.caveat is not None) == bool(removed)
        past = await oracle.bucket.as_of(revision)
        known = max((one for one, _ in oracle.held[key] if one <= revision), default=0)
        unsure = removed and (not known or (not self.config["deny_delete"] and known < max(removed)))
        if key in lost or unsure:
            with pytest.raises(HistoryLost) as caught:
                await past.get_many([key])
            assert caught.value.keys == [key]
        else:
            [entry] = await past.get_many([key])
            assert past.caveat is None
            if (entry and entry.value) != oracle.states[revision].get(key):
                assert missing
                assert self.removed
                assert not known or not self.config["deny_delete"]


@pytest.mark.guarantee("reading-21", by="oracle")
@pytest.mark.parametrize(("history", "keys"), [(1, 4), (3, 3), (5, 4), (64, 12)])
@pytest.mark.parametrize("deny_delete", [True, False])
async def test_every_moment_of_a_bucket_with_removed_messages_is_right_or_not_called_exact(
    client, raw, bucket_name, history, keys, deny_delete, seed, steps
):
    """Purges, compactions, limits and deleted messages; what the history may explain instead is not noticed."""
    config = raw.create_bucket(bucket_name, max_msgs_per_subject=history, deny_delete=deny_delete)["config"]
    removal = Removal(Oracle(client.bucket(bucket_name), raw, history, keys, seed), config)
    for _ in range(steps(2)):
        for _ in range(removal.random.randint(1, 12)):
            await removal.oracle.step()
        await removal.remove()
        for _ in range(removal.random.choice([0, 3])):
            await removal.oracle.step()
        for revision in range(1, len(removal.oracle.states)):
            await removal.check(revision)
    print(removal.outcomes)


async def ended(bucket: Bucket, key: str) -> Entry:
    """The marker of a key, once it has expired."""

    async def marker() -> Entry | None:
        entry = await bucket.last_entry(key)
        return entry if entry is None or entry.operation != "PUT" else None

    found = await until_async(marker, what=f"marker of `{key}`")
    assert found is not None
    return found


@pytest.mark.guarantee("reading-7", by="oracle")
@pytest.mark.parametrize(("history", "keys", "steps"), [(1, 4, 15), (2, 3, 25), (5, 4, 40), (64, 6, 40)])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 20))])
async def test_every_moment_is_right_or_honestly_lost(client, raw, bucket_name, history, keys, steps, seed):
    bucket = await client.create_bucket(bucket_name, history=history)
    oracle = Oracle(bucket, raw, history, keys, seed)
    for _ in range(steps):
        await oracle.step()
    times = {entry.revision: entry.created_ns async for entry in bucket.history()}
    for revision in range(1, steps + 1):
        past = await bucket.as_of(revision)
        assert past.revision == revision
        await oracle.check(revision, past)
        if revision in times:
            past = await bucket.as_of(Moment(time_ns=times[revision]))
            assert past.revision >= revision
            assert not any(revision < other <= past.revision for other in times)
            await oracle.check(revision, past)


class TestMoment:
    def test_moment_is_parsed_from_text(self):
        assert parse_moment("1042") == Moment(revision=1042)
        assert parse_moment("2026-01-31T12:00:00.000000001Z") == Moment(time_ns=1769860800000000001)
        assert parse_moment("-15m").at(10**12) == Moment(time_ns=100 * 10**9)

    @pytest.mark.parametrize("text", ["", "0", "-1", "x", "1.5", "yesterday", "2026-01-31", "1" * 20])
    def test_anything_else_is_an_error(self, text):
        with pytest.raises(UsageError):
            parse_moment(text)

    def test_moment_is_built_from_revision_time_or_text(self):
        time = datetime.fromisoformat("2026-01-31T13:00:00.000001+01:00")
        assert as_moment(time) == Moment(time_ns=1769860800000001000)
        assert as_moment(7) == as_moment("7") == as_moment(Moment(revision=7))
        with pytest.raises(UsageError, match="no time zone"):
            as_moment(time.replace(tzinfo=None))
        with pytest.raises(UsageError):
            Moment()


class TestEnds:
    async def test_a_revision_above_the_last_is_not_found(self, client, bucket_name):
        bucket = await client.create_bucket(bucket_name)
        with pytest.raises(RevisionNotFound, match="has no revision 1"):
            await bucket.as_of(1)
        await bucket.put("k", b"1")
        assert await state(await bucket.as_of(1)) == {"k": b"1"}
        with pytest.raises(RevisionNotFound) as caught:
            await bucket.as_of(2)
        assert (caught.value.exit_code, caught.value.hint) == (3, "Its last revision is 1")

    async def test_before_everything_there_was_nothing_and_later_is_now(self, client, bucket_name):
        bucket = await client.create_bucket(bucket_name, history=2)
        assert await state(await bucket.as_of("2020-01-01T00:00:00Z")) == {}
        await bucket.put("k", b"1")
        before = await bucket.as_of("2020-01-01T00:00:00Z")
        assert (before.revision, await state(before), await before.get_many(["k"])) == (0, {}, [None])
        assert await state(await bucket.as_of("2099-01-01T00:00:00Z")) == {"k": b"1"}
        with pytest.raises(KeyNotFound, match=r"`k` was not in bucket .* as of \d+ years ago \(20"):
            await before.get("k")


class TestWhatIsRead:
    @pytest.fixture
    async def past(self, client, bucket_name):
        """With keys a.1 to a.3 and b, a.2 deleted; all written again since."""
        bucket = await client.create_bucket(bucket_name, history=5)
        await bucket.put_many((key, key.encode()) for key in ("a.1", "a.2", "a.3", "b"))
        await bucket.delete("a.2")
        await bucket.put_many((key, b"later") for key in ("a.1", "a.2", "a.3", "b", "new"))
        return await bucket.as_of(5)

    async def test_filters_choose_and_may_overlap(self, past):
        assert await state(past, "a.*") == {"a.1": b"a.1", "a.3": b"a.3"}
        assert await state(past, "a.*", "*.3", "b") == {"a.1": b"a.1", "a.3": b"a.3", "b": b"b"}
        assert await state(past, "none.>") == {}
        with pytest.raises(UsageError):
            await state(past, "a*")

    async def test_entries_are_as_they_were_written(self, past):
        entries = [entry async for entry in past.entries()]
        assert [(entry.key, entry.revision) for entry in entries] == [("a.1", 1), ("a.3", 3), ("b", 4)]
        assert (await past.get("b"))[:5] == entries[2][:5]
        assert entries[0].created_ns < entries[1].created_ns
        assert [entry.delta for entry in entries] == [None] * 3

    async def test_named_keys_come_in_their_order(self, past):
        found = await past.get_many(["b", "a.2", "new", "a.1", "b"])
        assert [entry and entry.value for entry in found] == [b"b", None, None, b"a.1", b"b"]

    async def test_deletions_when_asked_for(self, past):
        entries = [(entry.key, entry.operation) async for entry in past.entries("a.>", deleted=True)]
        assert entries == [("a.1", "PUT"), ("a.3", "PUT"), ("a.2", "DEL")]
        assert [name async for batch in past.key_batches("a.>") for name in batch] == [b"a.1", b"a.3"]

    async def test_thousands_of_keys(self, client, bucket_name):
        bucket = await client.create_bucket(bucket_name, history=2)
        names = [f"k.{number}" for number in range(3000)]
        await bucket.put_many((name, b"then") for name in names)
        await bucket.put_many((name, b"now") for name in [*names[::2], "k.new"])
        past = await bucket.as_of(3000)
        assert await state(past) == await state(past, "k.*") == dict.fromkeys(names, b"then")
        found = await past.get_many([*reversed(names), "k.new"])
        assert [entry and entry.key for entry in found] == [*reversed(names), None]

    async def test_nonconforming_keys(self, raw, client, bucket_name):
        bucket = await client.create_bucket(bucket_name, history=5)
        for value in (b"then", b"now"):
            raw.put(bucket_name, "a:b", value)
        [entry] = await (await bucket.as_of(1)).get_many(["a:b"], literal=True)
        assert entry.value == b"then"


class TestLost:
    @pytest.mark.guarantee("reading-8")
    async def test_entries_that_expired_are_missed(self, raw, client, bucket_name):
        bucket = await client.create_bucket(bucket_name, history=5, ttl=timedelta(seconds=4))
        await bucket.put_many([("old", b"1"), ("k", b"1")])
        assert await state(await bucket.as_of(2)) == {"old": b"1", "k": b"1"}  # nothing has expired yet
        await until_async(
            lambda: raw.api(f"STREAM.INFO.KV_{bucket_name}")["state"]["first_seq"] >= 3, what="expiry of both entries"
        )
        await bucket.put_many([("k", b"2"), ("k", b"3")])
        past = await bucket.as_of(3)
        assert (await past.get("k")).value == b"2"
        for reading in (past.get("old"), state(past), past.get_many(["k", "never"])):
            with pytest.raises(HistoryLost, match="entries expire after 4s"):
                await reading

    async def test_a_keys_own_ttl_leaves_a_marker_and_then_a_caveat(self, raw, client, bucket_name):
        """Without a history the server keeps a key no longer than its ttl, however long its marker's is."""
        second, hour = timedelta(seconds=1), timedelta(hours=1)
        marking = await client.create_bucket(f"{bucket_name}M", marker_ttl=hour)
        await marking.put("k", b"1")
        held = await marking.create("held", b"2", ttl=hour)
        past = await marking.as_of(held)
        assert (await state(past), past.caveat) == ({"k": b"1", "held": b"2"}, None)

        leased = await marking.create("lease", b"3", ttl=second)
        marker = await ended(marking, "lease")
        with pytest.raises(HistoryLost, match="`lease`"):
            await state(await marking.as_of(leased))
        assert await state(await marking.as_of(marker.revision)) == {"k": b"1", "held": b"2"}

        brief = await client.create_bucket(bucket_name, history=5, marker_ttl=second)
        await brief.put("k", b"1")
        leased = await brief.create("lease", b"2", ttl=second)

        async def forgotten() -> bool:
            return await brief.last_entry("lease") is None

        await until_async(forgotten, what="end of the marker of `lease`")
        past = await brief.as_of(leased)
        assert await state(past) == {"k": b"1"}
        assert past.caveat
        assert "missing or outdated" in past.caveat

    @pytest.mark.guarantee("reading-7", by="fault")
    async def test_a_mirrors_longer_history_does_not_hide_what_the_origin_dropped(self, raw, client, bucket_name):
        bucket = await client.create_bucket(bucket_name)
        await bucket.put_many([("k", b"1"), ("k", b"2"), ("other", b"x")])
        mirror = await _mirror(client, bucket, history=5)
        past = await mirror.as_of(1)
        with pytest.raises(HistoryLost):
            await past.get("k")
        assert (await (await mirror.as_of(2)).get("k")).value == b"2"
        for revision, value in ((4, b"3"), (5, b"4")):
            await bucket.put("k", value)  # of which the origin keeps one: the mirror has to have it before the next
            await until_async(
                lambda revision=revision: raw.api(f"STREAM.INFO.{mirror.name}")["state"]["last_seq"] == revision,
                what=f"revision {revision} in the mirror",
            )
        assert (await (await mirror.as_of(2)).get("k")).value == b"2"  # this the mirror holds, the origin does not
        with pytest.raises(HistoryLost):
            await (await bucket.as_of(2)).get("k")
        await bucket.destroy()
        assert (await (await client.bucket(mirror.name).as_of(4)).get("k")).value == b"3"
        with pytest.raises(RevisionNotFound):
            await client.bucket(mirror.name).as_of(6)


async def test_mirror_that_missed_what_its_origin_dropped_has_a_caveat(raw, client, bucket_name):
    """It would show what the key was before: nothing tells whose entry it missed."""
    bucket = await client.create_bucket(bucket_name)
    await bucket.put("k", b"0")
    mirror = await _mirror(client, bucket, history=64)

    def missed() -> int | None:
        """The last sequence of the mirror, once it lacks some before."""
        for _ in range(20):
            raw.publish(f"$KV.{bucket.name}.k", b"v")
        state = raw.api(f"STREAM.INFO.{mirror.name}")["state"]
        return state["last_seq"] if state["messages"] < state["last_seq"] - state["first_seq"] + 1 else None

    revision = await until_async(missed, what="a revision that the mirror missed")
    assert revision is not None
    past = await mirror.as_of(revision)
    assert past.caveat is not None
    assert "the origin keeps fewer entries" in past.caveat
    longer = await client.create_bucket(f"{bucket_name}L", history=64)
    await longer.put("k", b"0")
    whole = await _mirror(client, longer, history=64)
    assert (await whole.as_of(1)).caveat is None


@pytest.mark.guarantee("reading-21")
async def test_moments_of_removed_entries_are_refused_since_two_pasts_leave_one_stream(client, unique):
    """At revision 3 only `a` existed in one bucket, and all three keys in the other."""
    compacted, purged = [await client.create_bucket(unique(), history=5) for _ in range(2)]
    for bucket in (compacted, purged):
        await bucket.put("a", b"v")
        await bucket.put("k", b"v")
    await compacted.delete("k")
    await purged.put("z", b"v")
    assert await compaction.remove(compacted, await compaction.find(compacted)) == 2
    for key in ("k", "z"):
        await streams.purge(client.api, f"KV_{purged.name}", filter=f"$KV.{purged.name}.{key}")
    infos = [await streams.info(client.api, f"KV_{bucket.name}") for bucket in (compacted, purged)]
    fields = ("messages", "bytes", "first_seq", "last_seq", "num_subjects", "num_deleted")
    assert len({tuple(info["state"].get(field) for field in fields) for info in infos}) == 1
    for bucket in (compacted, purged):
        with pytest.raises(HistoryLost, match="entries were removed from its stream"):
            await state(await bucket.as_of(3))


@pytest.mark.guarantee("reading-21")
async def test_a_mirror_of_some_keys_is_judged_by_its_origin(raw, client, bucket_name):
    """It lacks the revisions of other keys, which nobody removed."""
    bucket = await client.create_bucket(bucket_name, history=5)
    await bucket.put_many((key, b"1") for key in ("a.1", "b.1", "a.2", "b.2", "a.3"))
    mirror = await _mirror(client, bucket, 5, filter_subject=f"$KV.{bucket_name}.a.>")
    past = await mirror.as_of(4)
    assert (await state(past), past.caveat) == ({"a.1": b"1", "a.2": b"1"}, None)
    assert await past.get_many(["a.3"]) == [None]
    await streams.purge(client.api, f"KV_{bucket_name}", filter=f"$KV.{bucket_name}.b.1")
    past = await mirror.as_of(4)
    assert (await state(past), past.caveat is not None) == ({"a.1": b"1", "a.2": b"1"}, True)


@pytest.mark.guarantee("commands-4", "reading-21")
async def test_a_dump_of_a_moment_that_may_lack_keys_is_not_exact(client, bucket_name):
    bucket = await client.create_bucket(bucket_name, history=5)
    await bucket.put_many((f"k{number}", b"v") for number in range(1, 6))
    await streams.purge(client.api, f"KV_{bucket_name}", seq=4)
    for moment, exact in ((Moment(revision=3), None), (Moment(revision=4), False)):
        file = io.BytesIO()
        if exact is None:
            with pytest.raises(HistoryLost, match="entries were removed from its stream"):
                await dump_past(bucket, moment, file)
            continue
        made = await dump_past(bucket, moment, file)
        assert (made.entries, made.exact) == (1, exact)
        assert b'"exact": false' in file.getvalue().splitlines()[0]
    assert (await (await bucket.as_of(4)).get("k4")).value == b"v"
    with pytest.raises(HistoryLost, match="`k1` was at revision 3: entries were removed") as caught:
        await (await bucket.as_of(3)).get("k1")
    assert caught.value.hint == f"See the remaining history with `kvctl history {bucket_name}`"


async def _mirror(client: Client, bucket: Bucket, history: int, **source: Any) -> Bucket:
    name = f"M{bucket.name}"
    await streams.create(
        client.api,
        {
            "name": name,
            "mirror": {"name": f"KV_{bucket.name}", **source},
            "max_msgs_per_subject": history,
            "allow_direct": True,
            "storage": "file",
        },
    )
    last = (await bucket.status()).last_revision
    async with asyncio.timeout(60):
        while int((await streams.info(client.api, name))["state"]["last_seq"]) < last:
            await asyncio.sleep(0.05)
    return client.bucket(name)


async def test_an_aggregate_has_moments_of_its_own(client, unique):
    origins = [await client.create_bucket(unique()) for _ in range(2)]
    name = unique()
    sources = [
        {
            "name": f"KV_{one.name}",
            "subject_transforms": [{"src": f"$KV.{one.name}.>", "dest": f"$KV.{name}.{one.name}.>"}],
        }
        for one in origins
    ]
    await streams.create(
        client.api, {"name": f"KV_{name}", "sources": sources, "max_msgs_per_subject": 5, "storage": "file"}
    )
    aggregate = client.bucket(name)
    expected: list[State] = [{}]
    for number in range(6):
        key = f"{origins[number % 2].name}.k"
        await origins[number % 2].put("k", b"%d" % number)
        expected.append({**expected[-1], key: b"%d" % number})
        async with asyncio.timeout(60):
            while (await aggregate.status()).last_revision < number + 1:
                await asyncio.sleep(0.02)
    for revision in range(1, 7):
        assert await state(await aggregate.as_of(revision)) == expected[revision]


class TestUnderWriters:
    """What is overwritten while it is surveyed is right or refused, never absent."""

    @pytest.mark.guarantee("reading-7", by="race")
    @pytest.mark.parametrize("history", [1, 3])
    async def test_a_moment_is_right_or_refused(self, client, bucket_name, history):
        bucket = await client.create_bucket(bucket_name, history=history)
        names = [f"k.{number}" for number in range(300)]
        expected = {name: name.encode() for name in names}
        outcomes = []
        for attempt in range(6):
            await bucket.put_many(expected.items())
            past = await bucket.as_of((await bucket.status()).last_revision)
            writing = asyncio.create_task(_overwrite(bucket, names, delay=0.004 * attempt))
            outcomes += [await _right(past, expected, "k.*"), await _right(past, dict(list(expected.items())[::3]))]
            await writing
            outcomes.append(await _right(past, expected, "k.*"))
        assert False in outcomes

    @pytest.mark.guarantee("reading-7", by="race")
    async def test_a_long_history_is_always_right(self, client, bucket_name):
        bucket = await client.create_bucket(bucket_name, history=64)
        names = [f"k.{number}" for number in range(100)]
        await bucket.put_many((name, name.encode()) for name in names)
        past = await bucket.as_of(100)
        writing = asyncio.create_task(_overwrite(bucket, [*names, *(f"new.{number}" for number in range(50))]))
        for _ in range(5):
            assert await state(past) == {name: name.encode() for name in names}
            assert await past.get_many(["new.1", "new.2"]) == [None, None]
            assert (await bucket.as_of("2099-01-01T00:00:00Z")).revision >= 100
        await writing


async def test_a_restart_in_its_middle_changes_nothing(own_server):
    async with kvctl.connect(own_server.url) as client:
        bucket = await client.create_bucket("B", history=2)
        names = [f"k.{number}" for number in range(20_000)]
        await bucket.put_many((name, b"then") for name in names)
        await bucket.put_many((name, b"now") for name in names[::2])
        reading = asyncio.create_task(state(await bucket.as_of(20_000)))
        await asyncio.sleep(0.05)
        own_server.kill()
        await asyncio.to_thread(own_server.start)
        assert differences(await reading, dict.fromkeys(names, b"then")) == []


async def _right(past: Past, expected: State, *filters: str) -> bool:
    """Whether the keys are what they were; False where that is refused."""
    try:
        if filters:
            found = await state(past, *filters)
        else:
            found = {entry.key: entry.value for entry in await past.get_many(list(expected)) if entry}
    except HistoryLost:
        return False
    assert differences(found, expected) == []
    return True


async def _overwrite(bucket: Bucket, names: list[str], delay: float = 0) -> None:
    await asyncio.sleep(delay)
    for number in range(10):
        await bucket.put_many((name, b"%d" % number) for name in names)
