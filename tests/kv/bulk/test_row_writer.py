"""Bulk writes over cut connections: each row is stored once, and nobody's newer value is replaced."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest

import kvctl
from kvctl import Bucket, Context
from kvctl.errors import ConflictError, OutcomeUnknown
from kvctl.kv.bulk.input_file import open_input
from kvctl.kv.bulk.loader import LoadOptions, load
from kvctl.kv.bulk.rows import BadRow
from tests.support.proxy import DOWN, Cut
from tests.support.raw import putting

pytestmark = pytest.mark.guarantee("writing-12", by="fault")

COUNT = 600
CUT_AT, TAKEN = b".k.300 ", "k.450"
"""The row whose request is lost with all after it, and one of those."""


@pytest.fixture(params=[1, 5], ids=["no history", "history"])
async def ours(request, proxy, client, bucket_name):
    await client.create_bucket(bucket_name, history=request.param)
    async with kvctl.connect(Context(url=proxy.url, timeout=timedelta(seconds=5))) as connected:
        bucket = connected.bucket(bucket_name)
        await bucket.locate()
        yield bucket


def rows(prefix: str = "v") -> list[tuple[str, str]]:
    return [(f"k.{number}", f"{prefix}{number}") for number in range(COUNT)]


async def put_many(bucket: Bucket, _: Path, items: list[tuple[str, str]]) -> set[str]:
    """The keys of which it is not said that they were written."""
    summary = await bucket.put_many((key, value.encode()) for key, value in items)
    assert summary.written + len(summary.failed) == len(items)
    certain = (await bucket.status()).history > 1  # otherwise the other write would have replaced ours
    assert all(isinstance(error, ConflictError if certain else OutcomeUnknown) for _, error in summary.failed)
    return {key for key, _ in summary.failed}


async def load_all(bucket: Bucket, folder: Path, items: list[tuple[str, str]]) -> int:
    """The number of rows of which it is not said that they were written."""
    path = folder / "rows.ndjson"
    path.write_text("".join(json.dumps({"key": key, "value": value}) + "\n" for key, value in items))
    with path.open("rb") as file:
        loaded = await load(bucket, open_input(str(path), file), LoadOptions())
    assert loaded.written + loaded.rejected == len(items)
    return loaded.rejected


WAYS = pytest.mark.parametrize("write", [put_many, load_all])


async def contents(bucket: Bucket) -> dict[str, str]:
    return {entry.key: entry.value.decode() async for entry in bucket.entries()}


@WAYS
async def test_rows_whose_requests_are_lost_are_stored_once(ours, proxy, tmp_path, write):
    rule = proxy.on(CUT_AT, Cut())
    assert not await write(ours, tmp_path, rows())
    assert rule.seen.is_set()
    assert await contents(ours) == dict(rows())
    assert (await ours.status()).last_revision == COUNT


@WAYS
async def test_rows_whose_answers_are_lost_are_stored_once(ours, proxy, tmp_path, write):
    rule = proxy.on(b'"seq":300', Cut(), way=DOWN)
    assert not await write(ours, tmp_path, rows())
    assert rule.seen.is_set()
    assert await contents(ours) == dict(rows())
    assert (await ours.status()).last_revision == COUNT


@WAYS
async def test_newer_value_of_another_client_is_not_replaced_after_a_cut(ours, proxy, server, tmp_path, write):
    proxy.on(CUT_AT, Cut(), hook=putting(server.url, ours.name, TAKEN, b"newer"))
    unknown = await write(ours, tmp_path, rows())
    assert await contents(ours) == dict(rows()) | {TAKEN: "newer"}
    assert unknown in (1, {TAKEN})


async def test_row_that_another_client_wrote_over_is_not_counted_as_written(ours, proxy, server, tmp_path):
    proxy.on(CUT_AT, Cut(), hook=putting(server.url, ours.name, TAKEN, b"newer"))
    path = tmp_path / "rows.ndjson"
    path.write_text("".join(json.dumps({"key": key, "value": value}) + "\n" for key, value in rows()))
    rejected: list[BadRow] = []
    with path.open("rb") as file:
        loaded = await load(ours, open_input(str(path), file), LoadOptions(rejected=rejected.append))
    assert (loaded.written, loaded.rejected) == (COUNT - 1, 1)
    assert [bad.line for bad in rejected] == [451]
    assert await contents(ours) == dict(rows()) | {TAKEN: "newer"}


async def test_equal_value_of_another_client_is_not_taken_for_ones_own(ours, proxy, server):
    proxy.on(CUT_AT, Cut(), hook=putting(server.url, ours.name, TAKEN, dict(rows())[TAKEN].encode()))
    summary = await ours.put_many((key, value.encode()) for key, value in rows())
    assert [key for key, _ in summary.failed] == [TAKEN]
    assert (await ours.status()).last_revision == COUNT


@WAYS
async def test_rows_of_one_key_keep_their_order_over_a_cut(ours, proxy, tmp_path, write):
    items = [(f"k.{number % 7}", str(number)) for number in range(COUNT)]
    proxy.on(b'"seq":200', Cut(), way=DOWN)
    proxy.on(b".k.6 ", lambda frame: Cut() if frame.endswith(b"\r\n552\r\n") else None)
    assert not await write(ours, tmp_path, items)
    assert await contents(ours) == dict(items)
