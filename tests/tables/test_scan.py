"""Scans of a table: in order, page by page, and resumed in another session."""

import asyncio
import os
import random
from base64 import urlsafe_b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvctl.errors import UsageError
from kvctl.tables import catalog, scan
from kvctl.tables.changes import Insert, TableEntry, Version
from kvctl.tables.config import TableConfig
from kvctl.tables.ranges import Families, Range, resume
from kvctl.tables.scan import SortedRuns, merged
from kvctl.tables.table import Table

Names = list[tuple[str | None, bytes]]


def in_order(names: Names) -> Names:
    return sorted(names, key=lambda name: (name[0] is not None, (name[0] or "").encode(), name[1]))


async def fill(table: Table[bytes, bytes], count: int = 120) -> dict[tuple[str | None, bytes], Version]:
    dice = random.Random(count)
    names = {(dice.choice([None, "", "a", "ab"]), dice.randbytes(dice.randint(1, 3))) for _ in range(count)}
    return {name: await table.put(name[1], name[1] * 2, family=name[0]) for name in sorted(names, key=str)}


async def read(table: Table[bytes, bytes], of: Range, **settings: int | bool) -> Names:
    return [(e.family, e.key) async for page in table.pages(of, **settings) for e in page.entries]  # type: ignore[arg-type]


@pytest.mark.guarantee("tables-6")
async def test_scan_is_in_global_byte_order(table):
    versions = await fill(table)
    pages = [page async for page in table.pages(size=37)]
    entries = [entry for page in pages for entry in page.entries]
    assert [(entry.family, entry.key) for entry in entries] == in_order(list(versions))
    assert all(entry.version == versions[entry.family, entry.key] for entry in entries)
    assert all(entry.value == entry.key * 2 for entry in entries)  # type: ignore[union-attr]
    assert {len(page.entries) for page in pages[:-1]} == {37}
    assert [page.next is None for page in pages] == [False] * (len(pages) - 1) + [True]


async def test_scan_of_keys_has_versions_and_no_values(table):
    versions = await fill(table)
    keys = [key async for page in table.pages(values=False) for key in page.entries]
    assert {(key.family, key.key): key.version for key in keys} == versions
    assert {key.value for key in keys} == {b""}


@pytest.mark.parametrize("family", [None, "", "a", "ab", "none such"])
async def test_scan_of_one_family(table, family):
    versions = await fill(table)
    assert await read(table, Range(family)) == in_order([name for name in versions if name[0] == family])


@pytest.mark.parametrize(
    "of",
    [
        Range(prefix=b"\x40"),
        Range("a", prefix=b"\xff"),
        Range("a", start=b"\x20", end=b"\x80\x01"),
        Range(start=b"\x80"),
        Range(end=b"\x10"),
        Range(prefix=b"\x40", start=b"\x40\x80"),
        Range(start=b"b", end=b"a"),
    ],
)
async def test_scan_of_prefixes_and_inclusive_bounds(table, of):
    versions = await fill(table, 400)
    edge = of.start or of.end or of.prefix
    versions["a", edge] = await table.put(edge, edge * 2, family="a")

    def takes(name: tuple[str | None, bytes]) -> bool:
        family, key = name
        within = (of.start is None or of.start <= key) and (of.end is None or key <= of.end)
        return within and key.startswith(of.prefix) and (of.family is Families.ALL or family == of.family)

    assert await read(table, of) == in_order([name for name in versions if takes(name)])


@pytest.mark.guarantee("tables-6")
@pytest.mark.parametrize("values", [True, False])
async def test_token_resumes_exactly_where_the_page_ended(table, client, values):
    versions = await fill(table)
    seen: Names = []
    token: str | None = None
    while True:
        session = await Table.open(client.api, table.name)  # as another process would
        pages = [page async for page in session.pages(values=values, size=7, limit=7, after=token)]
        assert len(pages) == 1
        seen += [(entry.family, entry.key) for entry in pages[0].entries]
        token = pages[0].next
        if token is None:
            break
        await session.remove(seen[-1][1], family=seen[-1][0])  # the last key may go meanwhile
    assert seen == in_order(list(versions))


async def test_removals_during_a_scan_shorten_only_the_last_page(table):
    versions = in_order(list(await fill(table)))
    scan = table.pages(size=10)
    first = await anext(scan)  # some pages are fetched ahead
    for family, key in versions[60:75]:
        await table.remove(key, family=family)
    rest = [page async for page in scan]
    shown = [(e.family, e.key) for page in (first, *rest) for e in page.entries]
    assert shown == versions[:60] + versions[75:]
    assert all(len(page.entries) == 10 for page in rest[:-1])


async def test_limit_among_removed_entries_loses_nothing(table, monkeypatch):
    versions = in_order(list(await fill(table)))
    gone = versions[3:11]
    entries_at = table.entries_at

    async def removed_first(places: list[str], names: object, **how: bool) -> object:
        for family, key in gone:
            await table.remove(key, family=family)
        gone.clear()
        return await entries_at(places, names, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(table, "entries_at", removed_first)
    page = [page async for page in table.pages(limit=10)][-1]
    assert [(e.family, e.key) for e in page.entries] == versions[:3]
    assert page.next is not None
    rest = [(e.family, e.key) async for page in table.pages(after=page.next) for e in page.entries]
    assert rest == versions[11:]


async def test_scan_larger_than_memory_is_sorted_in_a_file(table, monkeypatch):
    monkeypatch.setattr(scan, "RUN_BYTES", 3000)
    monkeypatch.setattr(scan, "BLOCK_RECORDS", 5)
    versions = await fill(table, 400)
    for values in (True, False):
        entries = [entry async for page in table.pages(size=9, values=values) for entry in page.entries]
        assert [(entry.family, entry.key) for entry in entries] == in_order(list(versions))
        assert all(entry.version == versions[entry.family, entry.key] for entry in entries)


async def test_complete_scan_reads_each_entry_once(table, client):
    await fill(table)
    asked: list[str] = []
    client.connection.trace = lambda subject, *_: asked.append(subject)
    await read(table, Range())
    client.connection.trace = None
    assert not [subject for subject in asked if ".DIRECT.GET." in subject]
    assert len([subject for subject in asked if ".CONSUMER.CREATE." in subject]) == len(table.layout.buckets)


@pytest.mark.guarantee("tables-8")
async def test_scan_shows_what_its_session_has_written_since_it_began(table):
    names = in_order(list(await fill(table)))
    scan = table.pages(size=10)
    first = await anext(scan)
    family, key = names[50]
    version = await table.put(key, b"new", family=family)
    await table.remove(names[51][1], family=names[51][0])
    entries = [*first.entries, *[entry async for page in scan for entry in page.entries]]
    assert [(entry.family, entry.key) for entry in entries] == names[:51] + names[52:]
    assert entries[50] == TableEntry(key, b"new", version, family)


@pytest.mark.guarantee("tables-7", by="race")
@pytest.mark.parametrize("values", [True, False])
async def test_key_that_lives_through_a_scan_appears_once(table, client, values):
    """Some entries are only rewritten, others come and go between them; several scans, each with a writer beside."""
    living = [b"%04d" % (10 * number) for number in range(300)]
    for first in range(0, len(living), 100):
        await table.update([Insert(key, b"0", "f") for key in living[first : first + 100]])
    dice, writing = random.Random(7), True

    async def write() -> None:
        other = await Table.open(client.api, table.name)
        while writing:
            key = dice.choice(living)
            await other.put(key, b"1", family="f")
            guest = key[:-1] + b"%d" % dice.randint(1, 9)
            await (other.remove(guest, family="f") if dice.random() < 0.5 else other.put(guest, b"", family="f"))

    writers = [asyncio.create_task(write()) for _ in range(3)]
    for size in (7, 50, 1000) * 4:
        seen = await read(table, Range("f"), size=size, values=values)
        keys = [key for _, key in seen]
        assert keys == sorted(set(keys))
        assert [key for key in keys if key.endswith(b"0")] == living
    writing = False
    await asyncio.gather(*writers)


async def test_scan_ignores_messages_that_are_not_entries(table, raw):
    await table.put(b"k", b"v", family="f")
    partition = table.layout.place("f", b"k")[:4]
    family = table.layout.place("f", b"k").split(".")[1]
    for tokens in (f"{partition}.{family}.-", f"{partition}.x.00", f"{partition}.{family}.0", f"zz.{family}.00"):
        if tokens.startswith("zz") and table.config.apart:
            continue  # there is no such stream
        assert "seq" in raw.request(f"{table.layout.prefix}{tokens}", b"x").json()
    for values in (True, False):
        assert await read(table, Range(), values=values) == [("f", b"k")]


@pytest.mark.guarantee("tables-6")
async def test_tokens_of_another_scan_are_refused(table, client, unique):
    await fill(table)
    page = await anext(table.pages(Range("a"), size=1))
    with pytest.raises(UsageError, match="another range"):
        await anext(table.pages(Range("ab"), after=page.next))
    with pytest.raises(UsageError, match="is not a continuation token"):
        await anext(table.pages(Range("a"), after="nonsense"))
    other, _ = await catalog.create(client.api, TableConfig(unique("T")))
    with pytest.raises(UsageError, match="another table"):
        await anext(Table.of_bytes(client.api, other).pages(Range("a"), after=page.next))
    await catalog.delete(client.api, table.name)
    await catalog.create(client.api, table.config)
    again = await Table.open(client.api, table.name)
    with pytest.raises(UsageError, match="another instance of the table"):
        await anext(again.pages(Range("a"), after=page.next))


@pytest.mark.parametrize(
    "content", ["5", "{}", "[]", "[1]", '[1,"T"]', '[1,"T",1,[],5]', '[2,"T",1,[],"x"]', '[1,2,3,4,5,6,"x"]']
)
def test_invalid_token_is_refused(content):
    with pytest.raises(UsageError, match="is not a continuation token"):
        resume(urlsafe_b64encode(content.encode()).decode(), "T", 1, Range())


@pytest.mark.parametrize("text", ["", "é", "a", "-", "WzEs"])
def test_token_of_another_shape_is_refused(text):
    with pytest.raises(UsageError, match="is not a continuation token"):
        resume(text, "T", 1, Range())


async def test_invalid_family_is_refused_before_anything_is_sent(table):
    for family in ("\udcff", "f" * 2561):
        with pytest.raises(UsageError):
            await anext(table.pages(Range(family)))


async def test_empty_table_has_one_empty_page(table):
    assert [(list(page.entries), page.next) async for page in table.pages()] == [([], None)]


RUNS = st.lists(st.lists(st.lists(st.binary(max_size=3), min_size=1), max_size=4), max_size=4)


@given(RUNS)
def test_merged_runs_are_sorted_and_complete(runs):
    flat = [sorted(record for block in run for record in block) for run in runs]
    cut = [[run[at : at + 2] for at in range(0, len(run), 2)] for run in flat]
    found = [record for block in merged([iter(run) for run in cut]) for record in block]
    assert found == sorted(record for run in flat for record in run)


def test_records_beyond_the_memory_are_sorted_in_a_file(monkeypatch):
    monkeypatch.setattr(scan, "RUN_BYTES", 10_000)
    monkeypatch.setattr(scan, "BLOCK_RECORDS", 7)
    batches = [[os.urandom(5) for _ in range(50)] for _ in range(20)]
    with SortedRuns() as runs:
        for batch in batches:
            runs.add(batch)
        assert runs._file is not None
        assert len(runs._runs) > 3
        assert len(runs._records) < 200
        found = [record for block in runs.blocks() for record in block]
    assert found == sorted(record for batch in batches for record in batch)
    assert runs._file.closed


def test_few_records_need_no_file():
    with SortedRuns() as runs:
        runs.add([b"b", b"a"])
        assert runs._file is None
        assert list(runs.blocks()) == [[b"a", b"b"]]
    with SortedRuns() as runs:
        assert list(runs.blocks()) == []
