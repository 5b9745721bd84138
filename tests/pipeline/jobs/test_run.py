"""Runs of declared pipelines: buckets and files, SQL and expressions, errors, and plans."""

import csv
from collections.abc import Callable

import pytest

from kvctl.documents import parser
from kvctl.errors import ConflictError, KvctlError, NotFoundError, UsageError
from kvctl.pipeline.jobs import run as job
from kvctl.pipeline.pipeline_file import read_declared
from kvctl.pipeline.spark.engine import Engine
from kvctl.server import Server

Run = Callable[..., job.Ran]


@pytest.fixture
def go(engine, server, tmp_path):
    """Runs the pipeline of a file in `tmp_path`; `plan=True` says what it would do."""

    def go(text: str, plan: bool = False) -> object:
        declared = read_declared(parser.parse(text.encode(), "p.yaml"), tmp_path)
        return (job.plan if plan else job.run)(engine, declared, {"url": server.url})

    return go  # type: ignore[return-value]


def held(engine: Engine, server: Server, bucket: str) -> dict[str, bytes]:
    rows = engine.spark.read.format("nats-kv").options(bucket=bucket, url=server.url).load().collect()
    return {row.key: bytes(row.value) for row in rows}


def test_query_combines_buckets_and_files(go, fill, engine, server, tmp_path):
    orders, totals = fill({"NEW.1": b"3", "NEW.2": b"4", "OLD.1": b"5"}), fill()
    (tmp_path / "prices.csv").write_text("key,price\nNEW.1,10\nNEW.2,20\n")
    text = f"""
version: 1
sources:
  orders: {{bucket: {orders}, filter: "NEW.>"}}
  prices: {{path: prices.csv}}
sql: |
  SELECT concat('total.', o.key) AS key, cast(cast(cast(o.value AS string) AS int) * p.price AS string) AS value
  FROM orders o JOIN prices p ON o.key = p.key
sink: {{bucket: {totals}, if_different: true}}
"""
    ran = go(text)
    assert (ran.written, ran.unchanged, ran.rejected) == (2, 0, 0)
    assert held(engine, server, totals) == {"total.NEW.1": b"30", "total.NEW.2": b"80"}
    again = go(text)
    assert (again.written, again.unchanged) == (0, 2)


def test_run_writes_expressions_without_overwriting_files(go, fill, engine, tmp_path):
    bucket = fill({"a": b"1", "b": b"2"})
    text = f"""
version: 1
source: {{bucket: {bucket}}}
select: {{name: upper(key), size: length(value)}}
where: key > 'a'
sink: {{path: out, format: parquet}}
"""
    assert go(text).written == 1
    rows = engine.spark.read.parquet(str(tmp_path / "out")).collect()
    assert [(row.name, row.size) for row in rows] == [("B", 1)]
    with pytest.raises(ConflictError):
        go(text)
    assert go(text.replace("parquet}", "parquet, mode: append}")).written == 1
    assert engine.spark.read.parquet(str(tmp_path / "out")).count() == 2


def test_unfinished_files_do_not_block_a_run(go, fill, tmp_path):
    bucket = fill({"a": b"1", "b": b"x"})
    text = f"""
version: 1
source: {{bucket: {bucket}}}
select: {{number: cast(cast(value as string) as int)}}
sink: {{path: out, format: parquet}}
"""
    with pytest.raises(KvctlError):
        go(text)
    assert not (tmp_path / "out").exists()
    assert go(text.replace("cast(", "try_cast(")).written == 2


def test_plan_describes_the_run_without_effect(go, fill, engine, server):
    bucket, sink = fill({"a": b"1"}), fill()
    planned = go(
        f"version: 1\nsource: {{bucket: {bucket}}}\nselect: {{key: key, value: value}}\nsink: {{bucket: {sink}}}",
        plan=True,
    )
    assert planned.columns == {"key": "string", "value": "binary"}
    assert (planned.sources, planned.sink) == ({"source": f"bucket {bucket}"}, f"bucket {sink}")
    assert "nats-kv" in planned.plan
    assert held(engine, server, sink) == {}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("source: {bucket: B}\nsink: {bucket: NOWHERE}", NotFoundError),
        ("source: {bucket: NOWHERE}\nsink: {path: out.parquet}", NotFoundError),
        ("source: {path: nowhere.csv}\nsink: {bucket: B}", NotFoundError),
        ("source: {path: 'in[1].json'}\nsink: {bucket: B}", UsageError),
        ("sources: {s: {bucket: B}}\nsql: SELECT nosuch FROM s\nsink: {bucket: B}", KvctlError),
        ("sources: {s: {bucket: B}}\nsql: SELECT FROM WHERE\nsink: {bucket: B}", KvctlError),
        ("source: {bucket: B}\nselect: {x: key}\nsink: {bucket: B}", KvctlError),
    ],
)
def test_invalid_pipeline_is_one_clear_error(go, fill, engine, server, tmp_path, text, error):
    bucket = fill({"a": b"1"})
    (tmp_path / "in[1].json").touch()
    with pytest.raises(error) as caught:
        go("version: 1\n" + text.replace("bucket: B", f"bucket: {bucket}"))
    assert len(caught.value.message) < 500
    assert held(engine, server, bucket) == {"a": b"1"}


def test_files_are_read_and_written_with_their_schema(go, engine, tmp_path):
    (tmp_path / "in.csv").write_text('key,value\na,"say ""x"", \\"\nb,"two\nlines"\n')
    text = "version: 1\nsource: {path: in.csv}\nsink: {path: out.csv}"
    assert go(text).written == 2
    (part,) = (tmp_path / "out.csv").glob("*.csv")
    with part.open(newline="") as file:
        assert list(csv.reader(file)) == [["key", "value"], ["a", 'say "x", \\'], ["b", "two\nlines"]]


@pytest.mark.parametrize("row", ["a,1,2", "a", '{"key": "a"'])
def test_malformed_row_fails_the_run(go, tmp_path, row):
    json = row.startswith("{")
    (tmp_path / "in").write_text(f'{{"key": "b", "value": 1}}\n{row}\n' if json else f"key,value\nb,1\n{row}\n")
    with pytest.raises(KvctlError, match=r"Malformed|is not a JSON object"):
        go(f"version: 1\nsource: {{path: in, format: {'json' if json else 'csv'}}}\nsink: {{path: out.json}}")
    assert not (tmp_path / "out.json").exists()


def test_dry_run_finds_columns_that_the_sink_does_not_accept(go, fill):
    bucket = fill({"a": b"1"})
    with pytest.raises(UsageError, match="Unknown column `x`"):
        go(f"version: 1\nsource: {{bucket: {bucket}}}\nselect: {{x: key}}\nsink: {{bucket: {bucket}}}", plan=True)
    with pytest.raises(UsageError, match="`value` is binary"):
        go(f"version: 1\nsource: {{bucket: {bucket}}}\nsink: {{path: out.csv}}", plan=True)
