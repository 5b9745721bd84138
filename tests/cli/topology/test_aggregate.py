"""`kvctl aggregate` as a process."""

import json

import pytest

from tests.cli.conftest import Run
from tests.support.waiting import until
from tests.topology.conftest import Replicas, source


@pytest.fixture
def orders(raw, unique):
    """A bucket with new and old orders."""
    name = unique("ORDERS")
    raw.create_bucket(name)
    for key in ("NEW.1", "NEW.2", "OLD.1"):
        raw.put(name, key, b"v")
    return name


@pytest.fixture
def stock(raw, unique):
    """A bucket with one item."""
    name = unique("STOCK")
    raw.create_bucket(name)
    raw.put(name, "lon.nails", b"7")
    return name


def keys_of(run: Run, bucket: str) -> list[str]:
    return run("keys", bucket, "--sort").out.split()


def test_aggregate_create_matches_the_adr_example(run, orders, unique, snapshot):
    name = unique("NEW_ORDERS")
    args = ("aggregate", "create", name, "--origin", orders, "--keys", "NEW.>")
    assert run(*args, "--dry-run").masked(ORDERS=orders, TARGET=name) == snapshot
    assert run("aggregate", "show", name).exit_code == 3
    made = run(*args)
    assert (made.exit_code, made.out.startswith(f"Created aggregate `{name}` from `{orders}`: "), made.err) == (
        0,
        True,
        "",
    )
    assert keys_of(run, name) == ["1", "2"]
    refused = run("put", name, "k", "v")
    assert (refused.exit_code, f"`kvctl put {orders} NEW.k VALUE`" in refused.err) == (1, True)
    again = run(*args)
    assert (again.exit_code, again.out) == (0, f"Aggregate `{name}` already exists with this configuration\n")
    assert run(*args, "--writable").exit_code == 4


def test_aggregate_create_with_several_origins_prefix_and_map(run, orders, stock, unique):
    name = unique("EDGE")
    line = f"aggregate create {name} --origin bucket={orders},keys=NEW.>,prefix=orders.new "
    made = run(*line.split(), "--origin", f"bucket={stock},map=*.*:stock.$2.$1", "-o", "json")
    origins = [{"name": one, "stream": f"KV_{one}", "domain": None, "api": None} for one in (orders, stock)]
    assert json.loads(made.out) == {"name": name, "stream": f"KV_{name}", "origins": origins, "changed": True}
    assert keys_of(run, name) == ["orders.new.1", "orders.new.2", "stock.nails.lon"]
    listed = json.loads(run("aggregate", "ls", "-o", "json").out)
    (row,) = [row for row in listed if row["name"] == name]
    assert (row["origins"], row["values"]) == (origins, 3)
    shown = json.loads(run("aggregate", "show", name, "-o", "json").out)
    assert shown["origins"][0]["transforms"] == [{"src": f"$KV.{orders}.NEW.>", "dest": f"$KV.{name}.orders.new.>"}]
    assert run("aggregate", "delete", name).exit_code == 2  # no terminal to ask on
    assert run("aggregate", "delete", name, "--yes").exit_code == 0


def test_aggregate_create_takes_keys_prefix_and_map_options_for_one_origin(run, orders, stock, unique):
    one, other = unique("A"), unique("A")
    assert run(*f"aggregate create {one} --origin {orders} --keys OLD.> --prefix p".split()).exit_code == 0
    assert keys_of(run, one) == ["p.1"]
    assert run(*f"aggregate create {other} --origin {stock} --map *.*:$2.$1".split()).exit_code == 0
    assert keys_of(run, other) == ["nails.lon"]


def test_add_origin_fills_the_aggregate_from_it(run, orders, stock, unique):
    name = unique("A")
    assert run("aggregate", "create", name, "--origin", orders, "--prefix", "orders").exit_code == 0
    args = ("aggregate", "add-origin", name, f"bucket={stock},prefix=stock")
    assert run(*args, "--dry-run").exit_code == 0
    assert len(keys_of(run, name)) == 3
    assert run(*args).exit_code == 0
    assert "stock.lon.nails" in keys_of(run, name)
    again = run(*args)
    assert (again.exit_code, "already exists" in again.out) == (0, True)
    twice = run("aggregate", "add-origin", name, stock)
    text = f"`{stock}` is already an origin of `{name}` (as `stock.>`)"
    assert (twice.exit_code, text in twice.err) == (4, True)
    for target, code in ((orders, 1), (unique("NONE"), 3)):
        assert run("aggregate", "add-origin", target, stock).exit_code == code
    assert run("aggregate", "add-origin", name, unique("NONE")).exit_code == 3


def test_aggregate_with_one_origin_twice_shows_the_keys_of_each(run, orders, unique):
    name = unique("BOTH")
    origins = ("--origin", f"bucket={orders},keys=NEW.*", "--origin", f"bucket={orders},keys=OLD.*,prefix=old")
    assert run("aggregate", "create", name, *origins).exit_code == 0
    origin, _, _, *lines = run("topology", "status", name, tty=True).out.splitlines()
    assert origin.split()[0] == orders
    assert [line.split()[2:4] for line in lines[:2]] == [["NEW.*", "$1"], ["OLD.*", "old.$1"]]
    listed = run("aggregate", "ls", tty=True).out.splitlines()
    (line,) = [line for line in listed if line.startswith(name)]
    assert line.count(orders.rstrip("0123456789")) == 1  # a long name is cut
    assert run("aggregate", "add-origin", name, f"bucket={orders},keys=NEW.1").exit_code == 4
    more = run("aggregate", "add-origin", name, f"bucket={orders},keys=ELSE.>,prefix=else")
    assert more.exit_code == 0, more.err
    gone = run("aggregate", "remove-origin", name, orders, "--dry-run", "--force", "last-origin")
    assert f"`{orders}` is an origin of `{name}` 3 times" in gone.err
    other = run("aggregate", "create", name, "--origin", orders)
    assert (other.exit_code, f"`kvctl aggregate add-origin {name}`" in other.err) == (4, True)


def test_aggregate_create_reports_all_hazards_together(run, orders, stock, unique, snapshot):
    name = unique("A")
    args = ("--origin", orders, "--origin", stock, "--ttl", "1h", "--max-value-size", "1KiB")
    refused = run("aggregate", "create", name, *args)
    assert refused.masked(ORDERS=orders, STOCK=stock, TARGET=name) == snapshot
    forced = [word for name in ("key-collision", "shorter-ttl", "smaller-limits") for word in ("--force", name)]
    assert run("aggregate", "create", name, *args, *forced).exit_code == 0


def test_aggregate_commands_refuse_a_bucket(run, orders):
    for verb in ("show", "delete"):
        refused = run("aggregate", verb, orders)
        assert (refused.exit_code, refused.err.splitlines()[0]) == (
            1,
            f"error: `{orders}` is a bucket, not an aggregate",
        )


def test_remove_origin_deletes_its_keys(run, orders, stock, unique):
    name = unique("A")
    origins = ("--origin", f"bucket={orders},prefix=orders", "--origin", f"bucket={stock},prefix=stock")
    assert run("aggregate", "create", name, *origins).exit_code == 0
    args = ("aggregate", "remove-origin", name, stock)
    planned = json.loads(run(*args, "--dry-run", "-o", "json").out)
    assert [source["name"] for source in planned["sources"]] == [f"KV_{orders}"]
    assert "stock.lon.nails" in keys_of(run, name)
    unanswered = run(*args)
    assert (unanswered.exit_code, "`--yes` is required" in unanswered.err) == (2, True)
    assert "stock.lon.nails" in keys_of(run, name)
    removed = json.loads(run(*args, "--yes", "-o", "json").out)
    assert ([one["name"] for one in removed["origins"]], removed["removed"], removed["kept"]) == ([orders], 1, 0)
    assert keys_of(run, name) == ["orders.NEW.1", "orders.NEW.2", "orders.OLD.1"]
    assert run(*args).exit_code == 3
    last = run("aggregate", "remove-origin", name, orders)
    assert (last.exit_code, "--force last-origin" in last.err) == (1, True)
    assert run("aggregate", "remove-origin", orders, stock).exit_code == 1


def test_remove_origin_with_keep_data_keeps_its_keys(run, orders, stock, unique):
    name = unique("A")
    origins = ("--origin", f"bucket={orders},prefix=orders", "--origin", f"bucket={stock},prefix=stock")
    assert run("aggregate", "create", name, *origins).exit_code == 0
    args = ("aggregate", "remove-origin", name, stock)
    refused = run(*args, stdin=b"n\n", tty=True)
    assert refused.exit_code == 1
    assert run(*args, "--keep-data").exit_code == 0
    assert "stock.lon.nails" in keys_of(run, name)


@pytest.mark.guarantee("replicas-1")
def test_edit_of_an_aggregate_starts_its_old_sources_at_their_first_entry(run, raw, unique):
    origin, target, replicas = unique(), unique("A"), Replicas(raw)
    raw.create_bucket(origin)
    for number in range(3):
        raw.put(origin, f"k{number}", b"v")
    replicas.aggregate(target, source(origin, target), max_msgs_per_subject=2)
    until(lambda: len(replicas.subjects(f"KV_{target}")) == 3)
    assert run("bucket", "edit", target, "--description", "d").exit_code == 0
    assert replicas.info(f"KV_{target}")["config"]["sources"][0]["opt_start_seq"] == 1
    raw.put(origin, "k3", b"v")
    until(lambda: len(replicas.subjects(f"KV_{target}")) == 4)
    assert replicas.info(f"KV_{target}")["state"]["messages"] == 4  # nothing arrived twice


def test_table_as_origin_is_named(run, unique):
    table = unique("T")
    assert run("table", "create", table).exit_code == 0
    for args in (("mirror", "create", unique("M")), ("aggregate", "create", unique("A"))):
        for force in ((), ("--force", "missing-origin")):
            refused = run(*args, "--origin", table, *force)
            assert (refused.exit_code, f"`{table}` is a table, not a bucket" in refused.err) == (1, True)
