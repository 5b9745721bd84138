"""The scripts and topology files in examples/, run as they stand."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from kvctl.contexts import ContextStore
from kvctl.labs import Lab, run_lab
from tests.cli.conftest import Result, run_process
from tests.support.readme import ROOT
from tests.support.waiting import until

EXAMPLES = ROOT / "examples"


@pytest.fixture
def run(server):
    """Runs an example against the shared server, with kvctl on PATH."""
    path = os.pathsep.join([os.path.dirname(sys.executable), "/usr/bin", "/bin"])
    environment = {**os.environ, "NATS_URL": server.url, "PATH": path}

    def run(*command: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)

    return run


def test_every_example_has_a_test():
    tested = Path(__file__).read_text(encoding="utf-8")
    assert not [path.name for path in EXAMPLES.iterdir() if path.is_file() and f'"{path.name}"' not in tested]


def test_the_cache_follows_the_bucket(run, raw, bucket_name):
    raw.create_bucket(bucket_name)
    for key, value in (("a", b"1"), ("b", b"2"), ("gone", b"3")):
        raw.put(bucket_name, key, value)
    raw.put(bucket_name, "gone", b"", {"KV-Operation": "DEL"})
    done = run(sys.executable, str(EXAMPLES / "cache.py"), bucket_name)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "a 1\nb 2\nseen.by the cache\n"


def test_increments_by_several_at_once_all_count(run, raw, bucket_name):
    raw.create_bucket(bucket_name)
    with ThreadPoolExecutor(3) as pool:
        runs = list(pool.map(lambda _: run(str(EXAMPLES / "increment.sh"), bucket_name, "counter"), range(4)))
    assert [done.returncode for done in runs] == [0] * 4
    stored = raw.request(f"$JS.API.DIRECT.GET.KV_{bucket_name}.$KV.{bucket_name}.counter")
    assert stored.data == b"4"


@pytest.mark.slow
def test_tables_and_buckets_are_combined_by_spark(run, raw, unique, tmp_path):
    orders, customers, into, prices = (unique() for _ in range(4))
    for bucket in (orders, customers, into, prices):
        raw.create_bucket(bucket)
    raw.put(orders, "1", b'{"sku": "nails", "customer": "c7"}')
    raw.put(orders, "2", b'{"sku": "bolts", "customer": "c8"}')
    raw.put(customers, "c7", b"Ann")

    def example(*command: str) -> None:
        done = run(*command)
        assert done.returncode == 0, done.stderr

    def rows(bucket: str) -> "set[tuple[str, bytes]]":
        table = tmp_path / bucket
        for _ in range(2):  # again, with nothing new
            example(str(EXAMPLES / "bucket-to-delta.sh"), bucket, str(table))
        found = DeltaTable(str(table)).to_pyarrow_table().to_pylist()
        return {(row["key"], row["value"]) for row in found}

    sets = (f"--set={name}={bucket}" for name, bucket in (("orders", orders), ("customers", customers), ("into", into)))
    example("kvctl", "pipeline", "run", str(EXAMPLES / "join-buckets.sql"), *sets)
    assert rows(into) == {("1", b'{"sku":"nails","customer":"Ann"}')}

    source = str(tmp_path / "prices")
    write_deltalake(source, pa.table({"sku": ["nails", "bolts", "free"], "price": [1.5, 2.0, None]}))
    script = str(EXAMPLES / "delta-to-bucket.sql")
    example("kvctl", "pipeline", "run", script, "--table", f"prices={source}", "--set", f"bucket={prices}")
    assert rows(prices) == {("nails", b"1.5"), ("bolts", b"2.0")}


class Applied:
    """A topology file applied in a lab: kvctl in its contexts, and everything deleted at the end."""

    def __init__(self, lab: Lab, file: str, context: str) -> None:
        for known in lab.contexts.values():
            ContextStore().save(known)
        self.arguments = ("-f", str(EXAMPLES / file), "--context", context)
        done = run_process("topology", "apply", *self.arguments, "--yes", timeout=300)
        assert done.exit_code == 0, done.err
        self.context = context

    def __call__(self, *args: str, context: str = "") -> Result:
        done = run_process(*args, "--context", context or self.context)
        assert done.exit_code == 0, done.err
        return done

    def keys(self, bucket: str, *, count: int) -> list[str]:
        """The bucket's keys, when there are so many."""
        return until(lambda: len(found := sorted(self("keys", bucket).out.split())) == count and found)

    def check(self) -> None:
        """A second plan is empty, and every replica is well."""
        assert run_process("topology", "plan", *self.arguments, "--exit-code").exit_code == 0
        shown = run_process("topology", "status", *self.arguments, "-o", "json")
        assert {row["state"] for row in json.loads(shown.out)} == {"ok"}, shown.out

    def delete(self, *names: str, context: str = "") -> None:
        """Replicas first."""
        for name in names:
            self("bucket", "delete", name, "--yes", "--confirm", name, context=context)


def test_a_read_replica_in_another_cluster(supercluster):
    kvctl = Applied(supercluster, "read-replica.yaml", "lon")
    kvctl("put", "ORDERS", "7", "nails")
    until(lambda: kvctl("get", "ORDERS", "7", context="nyc").out == "nails")
    kvctl.check()
    kvctl.delete("ORDERS_NYC", "ORDERS")


def test_regions_merged_into_one_view(supercluster):
    kvctl = Applied(supercluster, "merged-regions.yaml", "lon")
    for region in ("lon", "nyc"):
        kvctl("put", f"ORDERS_{region.upper()}", "7", region, context=region)
    assert kvctl.keys("ORDERS_ALL", count=2) == ["lon.7", "nyc.7"]
    assert kvctl.keys("ORDERS_ALL_NYC", count=2) == ["lon.7", "nyc.7"]
    kvctl.check()
    kvctl.delete("ORDERS_ALL_NYC", "ORDERS_ALL", "ORDERS_LON", "ORDERS_NYC")


def test_a_copy_at_the_edge(leaf):
    kvctl = Applied(leaf, "edge.yaml", "leaf")
    kvctl("put", "PRICES", "bolts", "5", context="hub")
    for key in ("17.bolts", "18.bolts"):
        kvctl("put", "STOCK", key, "100", context="hub")
    until(lambda: kvctl("keys", "PRICES_EDGE").out == "bolts\n")
    assert kvctl("get", "PRICES", "bolts").out == "5"
    assert kvctl.keys("MY_STOCK", count=1) == ["bolts"]
    kvctl.check()
    kvctl.delete("PRICES_EDGE", "MY_STOCK")
    kvctl.delete("PRICES", "STOCK", context="hub")


def test_a_bucket_replicated_into_another_account():
    with run_lab("accounts") as lab:
        kvctl = Applied(lab, "cross-account.yaml", "replica")
        for key in ("NEW.7", "OLD.1"):
            kvctl("put", "ORDERS", key, "nails", context="origin")
        assert kvctl.keys("ORDERS_COPY", count=2) == ["NEW.7", "OLD.1"]
        assert kvctl.keys("INBOX", count=1) == ["orders.7"]
        kvctl.check()


def test_picture_in_the_readme_is_the_graph_of_its_example():
    drawn = run_process("topology", "graph", "-f", str(EXAMPLES / "merged-regions.yaml"), "--format", "svg")
    assert drawn.stdout == (ROOT / "docs" / "merged-regions.svg").read_bytes()
