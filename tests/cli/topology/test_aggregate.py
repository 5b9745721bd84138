"""`kvctl aggregate` as a process."""

import json
from collections.abc import Callable

import pytest

from kvctl.server import Server
from tests.cli.conftest import Run

Names = Callable[..., str]


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


def keys_of(run: Run, server: Server, bucket: str) -> list[str]:
    return run("keys", bucket, "--sort", "-s", server.url).out.split()


def test_aggregate_create_matches_the_adr_example(run, server, orders, unique, snapshot):
    name = unique("NEW_ORDERS")
    args = ("aggregate", "create", name, "--origin", orders, "--keys", "NEW.>", "-s", server.url)
    assert run(*args, "--dry-run").masked(ORDERS=orders, TARGET=name) == snapshot
    assert run("aggregate", "show", name, "-s", server.url).exit_code == 3
    made = run(*args)
    assert (made.exit_code, made.out, made.err) == (0, "", "")
    assert keys_of(run, server, name) == ["1", "2"]
    assert run("put", name, "k", "v", "-s", server.url).exit_code == 1
    again = run(*args)
    assert (again.exit_code, again.err) == (0, f"Aggregate `{name}` already exists with this configuration\n")
    assert run(*args, "--writable").exit_code == 4


def test_aggregate_create_with_several_origins_prefix_and_map(run, server, orders, stock, unique):
    name = unique("EDGE")
    made = run(
        "aggregate",
        "create",
        name,
        "--origin",
        f"bucket={orders},keys=NEW.>,prefix=orders.new",
        "--origin",
        f"bucket={stock},map=*.*:stock.$2.$1",
        "-s",
        server.url,
        "-o",
        "json",
    )
    origins = [{"name": one, "stream": f"KV_{one}", "domain": None, "api": None} for one in (orders, stock)]
    assert json.loads(made.out) == {"name": name, "stream": f"KV_{name}", "origins": origins, "changed": True}
    assert keys_of(run, server, name) == ["orders.new.1", "orders.new.2", "stock.nails.lon"]
    (row,) = [
        row for row in json.loads(run("aggregate", "ls", "-s", server.url, "-o", "json").out) if row["name"] == name
    ]
    assert (row["origins"], row["values"]) == (origins, 3)
    shown = json.loads(run("aggregate", "show", name, "-s", server.url, "-o", "json").out)
    assert shown["origins"][0]["transforms"] == [{"src": f"$KV.{orders}.NEW.>", "dest": f"$KV.{name}.orders.new.>"}]
    assert run("aggregate", "delete", name, "-s", server.url).exit_code == 2  # no terminal to ask on
    assert run("aggregate", "delete", name, "--yes", "-s", server.url).exit_code == 0


def test_aggregate_create_takes_keys_prefix_and_map_options_for_one_origin(run, server, orders, stock, unique):
    one, other = unique("A"), unique("A")
    assert (
        run(
            "aggregate", "create", one, "--origin", orders, "--keys", "OLD.>", "--prefix", "p", "-s", server.url
        ).exit_code
        == 0
    )
    assert keys_of(run, server, one) == ["p.1"]
    assert run("aggregate", "create", other, "--origin", stock, "--map", "*.*:$2.$1", "-s", server.url).exit_code == 0
    assert keys_of(run, server, other) == ["nails.lon"]
    several = run(
        "aggregate", "create", unique("A"), "--origin", orders, "--origin", stock, "--prefix", "p", "-s", server.url
    )
    assert several.exit_code == 2


def test_add_origin_fills_the_aggregate_from_it(run, server, orders, stock, unique):
    name = unique("A")
    assert run("aggregate", "create", name, "--origin", orders, "--prefix", "orders", "-s", server.url).exit_code == 0
    args = ("aggregate", "add-origin", name, f"bucket={stock},prefix=stock", "-s", server.url)
    assert run(*args, "--dry-run").exit_code == 0
    assert len(keys_of(run, server, name)) == 3
    assert run(*args).exit_code == 0
    assert "stock.lon.nails" in keys_of(run, server, name)
    again = run(*args)
    assert (again.exit_code, "already exists" in again.err) == (0, True)
    for target, code in ((orders, 1), (unique("NONE"), 3)):
        assert run("aggregate", "add-origin", target, stock, "-s", server.url).exit_code == code
    assert run("aggregate", "add-origin", name, unique("NONE"), "-s", server.url).exit_code == 3


def test_aggregate_with_one_origin_twice_shows_the_keys_of_each(run, server, orders, unique):
    name = unique("BOTH")
    origins = ("--origin", f"bucket={orders},keys=NEW.*", "--origin", f"bucket={orders},keys=OLD.*,prefix=old")
    assert run("aggregate", "create", name, *origins, "-s", server.url).exit_code == 0
    heading, *lines = run("topology", "status", name, "-s", server.url, tty=True).out.splitlines()
    assert heading.split()[2:5] == ["ORIGIN", "KEYS", "LANDS"]
    assert [line.split()[3:5] for line in lines] == [["NEW.*", "$1"], ["OLD.*", "old.$1"]]
    listed = run("aggregate", "ls", "-s", server.url, tty=True).out.splitlines()
    (line,) = [line for line in listed if line.startswith(name)]
    assert line.count(orders.rstrip("0123456789")) == 1  # a long name is cut
    other = run("aggregate", "create", name, "--origin", orders, "-s", server.url)
    assert (other.exit_code, f"`kvctl aggregate add-origin {name}`" in other.err) == (4, True)


def test_aggregate_create_reports_all_hazards_together(run, server, orders, stock, unique, snapshot):
    name = unique("A")
    args = ("--origin", orders, "--origin", stock, "--ttl", "1h", "--max-value-size", "1KiB")
    refused = run("aggregate", "create", name, *args, "-s", server.url)
    assert refused.masked(ORDERS=orders, STOCK=stock, TARGET=name) == snapshot
    forced = [word for name in ("key-collision", "shorter-ttl", "smaller-limits") for word in ("--force", name)]
    assert run("aggregate", "create", name, *args, *forced, "-s", server.url).exit_code == 0


@pytest.mark.parametrize(
    "args",
    [
        (),
        ("--origin", ""),
        ("--origin", "bucket=B,what=1"),
        ("--origin", "B", "--map", "a"),
        ("--origin", "B", "--prefix", ""),
        ("--origin", "B", "--force", "filtered-mirror"),
        ("--origin", "B", "--map", "*.*:$3"),
        ("--origin", "B", "--keys", "a.>", "--keys", "a.b"),
        ("--origin", "B", "--origin", "B"),
        ("--origin", "B", "--republish-headers-only"),
    ],
)
def test_aggregate_create_with_invalid_arguments_is_a_usage_error(run, args):
    assert run("aggregate", "create", "A", *args, "-s", "nats://127.0.0.1:1").exit_code == 2  # before connecting


def test_aggregate_commands_refuse_a_bucket(run, server, orders):
    for verb in ("show", "delete"):
        refused = run("aggregate", verb, orders, "-s", server.url)
        assert (refused.exit_code, refused.err.splitlines()[0]) == (
            1,
            f"error: `{orders}` is a bucket, not an aggregate",
        )


def test_remove_origin_deletes_its_keys(run, server, orders, stock, unique):
    name = unique("A")
    origins = ("--origin", f"bucket={orders},prefix=orders", "--origin", f"bucket={stock},prefix=stock")
    assert run("aggregate", "create", name, *origins, "-s", server.url).exit_code == 0
    args = ("aggregate", "remove-origin", name, stock, "-s", server.url)
    planned = json.loads(run(*args, "--dry-run").out)
    assert [source["name"] for source in planned["sources"]] == [f"KV_{orders}"]
    assert "stock.lon.nails" in keys_of(run, server, name)
    removed = json.loads(run(*args, "-o", "json").out)
    assert ([one["name"] for one in removed["origins"]], removed["removed"], removed["kept"]) == ([orders], 1, 0)
    assert keys_of(run, server, name) == ["orders.NEW.1", "orders.NEW.2", "orders.OLD.1"]
    assert run(*args).exit_code == 3
    last = run("aggregate", "remove-origin", name, orders, "-s", server.url)
    assert (last.exit_code, "--force last-origin" in last.err) == (1, True)
    assert run("aggregate", "remove-origin", orders, stock, "-s", server.url).exit_code == 1


def test_repair_restores_keys_that_a_removed_origin_overwrote(run, server, raw, orders, unique):
    name, other = unique("A"), unique("B")
    raw.create_bucket(other)
    raw.put(other, "NEW.1", b"theirs")
    assert run("aggregate", "create", name, "--origin", orders, "-s", server.url).exit_code == 0
    added = run("aggregate", "add-origin", name, other, "--force", "key-collision", "-s", server.url)
    assert added.exit_code == 0, added.err
    removed = run("aggregate", "remove-origin", name, other, "-s", server.url)
    assert (removed.exit_code, f"`kvctl topology audit {name} --repair`" in removed.err) == (0, True)
    assert keys_of(run, server, name) == ["NEW.2", "OLD.1"]
    assert run("topology", "audit", name, "--repair", "--yes", "-s", server.url).exit_code == 0
    assert run("get", name, "NEW.1", "-s", server.url).stdout == b"v"


def test_remove_origin_with_keep_data_keeps_its_keys(run, server, orders, stock, unique):
    name = unique("A")
    origins = ("--origin", f"bucket={orders},prefix=orders", "--origin", f"bucket={stock},prefix=stock")
    assert run("aggregate", "create", name, *origins, "-s", server.url).exit_code == 0
    args = ("aggregate", "remove-origin", name, stock, "-s", server.url)
    refused = run(*args, stdin=b"n\n", tty=True)
    assert refused.exit_code == 1
    assert run(*args, "--keep-data").exit_code == 0
    assert "stock.lon.nails" in keys_of(run, server, name)
