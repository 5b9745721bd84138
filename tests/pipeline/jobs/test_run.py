"""SQL scripts on Spark: statements, variables, plans, and errors."""

import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from kvctl.errors import KvctlError, NotFoundError, PartlyDone, UsageError
from kvctl.pipeline.jobs import run as job


@pytest.fixture
def run(engine, server):
    """Runs a script; `plan=True` returns its plans instead."""

    def run(text: str, plan: bool = False) -> object:
        script = job.statements(text, {"url": server.url})
        return (job.plan if plan else job.run)(engine, script)

    return run


@pytest.fixture
def contents(engine, server):
    def contents(bucket: str) -> dict[str, bytes]:
        rows = engine.spark.read.format("nats-kv").options(bucket=bucket, url=server.url).load().collect()
        return {row.key: bytes(row.value) for row in rows}

    return contents


def view(name: str, bucket: str, **options: str) -> str:
    given = "".join(f", {option} '{value}'" for option, value in options.items())
    options_of_it = f"bucket '{bucket}', url '${{url}}'{given}"
    return f"create or replace temporary view {name} using `nats-kv` options ({options_of_it});"


@pytest.mark.parametrize(
    ("text", "statements"),
    [
        ("select 1", ["select 1"]),
        (" ;; select 1;\n;select 2 ;", ["select 1", "select 2"]),
        ("select ';', \"a;b\" from `x;y`; select 1", ["select ';', \"a;b\" from `x;y`", "select 1"]),
        (r"select 'it\'s; ok', 'it''s; ok'; select 1", [r"select 'it\'s; ok', 'it''s; ok'", "select 1"]),
        ("-- it's; a comment\nselect 1 /* ; */ + 1", ["select 1   + 1"]),
        ("select /*+ BROADCAST(a) */ '--', '/* */'", ["select /*+ BROADCAST(a) */ '--', '/* */'"]),
        ("-- only a comment;", []),
    ],
)
def test_script_is_split_outside_of_quotes_and_comments(text, statements):
    assert [found.text for found in job.statements(text, {})] == statements


def test_a_statement_knows_its_number_and_line():
    text = "-- first;\nselect 1;\n\n/* a\n; b */ select 2\n  from x; ;select ';\n'; \n select 4"
    found = [(statement.number, statement.line) for statement in job.statements(text, {})]
    assert found == [(1, 2), (2, 5), (3, 6), (4, 8)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("select key\n\nfrom (select;", "Statement 2, line 5: Syntax error"),
        ("select\nnosuch from source", "Statement 2, line 4: "),
        (f"{view('other', 'NOWHERE')}\ninsert into source select * from other", "Statement 3, line 4: Bucket"),
    ],
)
def test_an_error_names_the_statement_and_its_line(run, fill, text, said):
    with pytest.raises(KvctlError) as caught:
        run(f"-- a script\n{view('source', fill({'a': b'1'}))}\n{text}")
    assert caught.value.message.startswith(said), caught.value.message


def test_variables_are_replaced_and_required():
    found = job.statements("select '${a}', ${b}${a}", {"a": "x;y", "b": "1"})
    assert [statement.text for statement in found] == ["select 'x;y', 1x", "y"]
    with pytest.raises(UsageError, match=r"`\$\{day\}` has no value") as missing:
        job.statements("select '${day}'", {})
    assert missing.value.hint == "Set it with `--set day=VALUE`"
    with pytest.raises(UsageError, match=r"has no variable `\$\{dya\}`"):
        job.statements("select '${day}'", {"day": "1", "dya": "2"})


@pytest.mark.guarantee("pipeline-31")
def test_script_combines_buckets_and_files(run, fill, contents, tmp_path):
    orders, totals = fill({"NEW.1": b"3", "NEW.2": b"4", "OLD.1": b"5"}), fill()
    (tmp_path / "prices.csv").write_text("key,price\nNEW.1,10\nNEW.2,20\n")
    text = f"""
    {view("orders", orders, filter="NEW.>")}
    {view("totals", totals, columns="key,value", ifDifferent="true")}
    create or replace temporary view prices using csv
      options (path '{tmp_path}/prices.csv', header 'true', inferSchema 'true');
    insert into totals
      select concat('total.', o.key), cast(string(int(string(o.value)) * p.price) as binary)
      from orders o join prices p on o.key = p.key;
    """
    assert run(text) == 4
    assert contents(totals) == {"total.NEW.1": b"30", "total.NEW.2": b"80"}


def test_tables_are_read_by_name_as_they_are_at_the_start(engine, server, fill, contents, tmp_path):
    bucket, prices = fill({"NEW.1": b"3", "NEW.2": b"4"}), str(tmp_path / "prices")
    rows = pa.table({"the sku": ["NEW.1", "NEW.2"], "price": [10, 20], "day": ["mon", "tue"]})
    write_deltalake(prices, rows, partition_by=["day"])
    pq.write_table(pa.table({"day": ["tue"], "factor": [2]}), tmp_path / "days.parquet")
    tables = job.open_tables({"prices": prices, "days": str(tmp_path / "days.parquet")}, ())
    text = f"""
    {view("orders", bucket)} {view("sink", bucket, columns="key,value")}
    insert into sink
      select concat('total.', o.key), binary(string(int(string(o.value)) * p.price * d.factor))
      from orders o join prices p on o.key = p.`the sku` join days d on p.day = d.day;
    """
    script = job.statements(text, {"url": server.url})
    *_, planned = job.plan(engine, script, tables)
    assert "MapInArrow" in planned.plan
    assert job.run(engine, script, tables) == 3
    assert contents(bucket) == {"NEW.1": b"3", "NEW.2": b"4", "total.NEW.2": b"160"}

    counted = [job.Statement("create or replace temporary view n as select count(*) as n from prices", 1, 1)]
    job.run(engine, counted, tables)
    write_deltalake(prices, rows, mode="append")
    assert engine.spark.table("n").first().n == 2
    with pytest.raises(UsageError, match=r"^Statement 1, line 1: "):
        job.run(engine, [job.Statement("insert into prices values ('a', 1, 'mon')", 1, 1)], tables)


@pytest.mark.parametrize(
    ("name", "uri", "options", "error", "said"),
    [
        ("t", "nowhere", (), NotFoundError, "nowhere` does not exist"),
        ("t", "t.csv", (), UsageError, "is neither a Delta table nor Parquet files"),
        ("t", "", (), UsageError, "is neither a Delta table nor Parquet files"),
        ("a.b", "t.csv", (), UsageError, "`a.b` is not a name of a table"),
        ("t", "t.csv", ("aws_region=eu",), UsageError, "`--storage-option` requires `--table` with a URL"),
        ("t", "ftp://host/x", (), UsageError, "is not a storage of tables"),
    ],
)
def test_what_is_no_table_is_refused_before_spark_starts(tmp_path, name, uri, options, error, said):
    (tmp_path / "t.csv").write_text("a")
    with pytest.raises(error, match=said):
        job.open_tables({name: uri if "://" in uri else str(tmp_path / uri)}, options)


def test_rejected_row_ends_the_script(run, fill, contents):
    bucket = fill()
    with pytest.raises(PartlyDone, match="1 row cannot be written: `b c`"):
        run(f"{view('sink', bucket, columns='key,value')} insert into sink values ('a', x'31'), ('b c', x'31')")
    assert contents(bucket) == {"a": b"1"}


def test_plan_describes_the_script_without_effect(run, fill, contents):
    bucket, sink = fill({"a": b"1"}), fill()
    text = f"{view('source', bucket)} {view('sink', sink, columns='key,value')} insert into sink select key, value "
    first, _, last = run(f"{text} from source", plan=True)
    assert (first.statement[:35], first.plan) == ("create or replace temporary view so", "")
    assert "nats-kv" in last.plan
    assert contents(sink) == {}
    with pytest.raises(UsageError, match="nosuch"):
        run(f"{text} from nosuch", plan=True)


@pytest.mark.parametrize("plan", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_invalid_script_is_one_clear_error(run, fill, contents, plan):
    bucket = fill({"a": b"1"})
    views = f"{view('source', bucket)} {view('sink', bucket, columns='key,value')}"
    for text in (
        "insert into sink select nosuch, value from source",
        "insert into sink select key from source",
        "select from where",
        f"{view('other', 'B', partition='1')} select * from other",
    ):
        with pytest.raises(UsageError) as caught:
            run(f"{views} {text}", plan)
        assert len(caught.value.message) < 500, text
    assert contents(bucket) == {"a": b"1"}


@pytest.mark.parametrize("part", ["/*", "/*+", "'\\'", '"\\"', "`", "${", "'a' ", "-- a\n", "/* a */", "; ", "/*/"])
def test_splitting_a_script_takes_linear_time(part):
    text = part * (1_000_000 // len(part))
    begun = time.process_time()
    job.statements(text, {})
    assert time.process_time() - begun < 4  # what is quadratic takes hours


@pytest.mark.parametrize(
    "text", ["select 1 /* open; select 2", "select 'open; select 2", 'select "open; x', "select `a; b"]
)
def test_what_is_not_closed_extends_to_the_end(text):
    assert [one.text for one in job.statements(text, {})] == [text]
