"""Aggregates receive all entries their origins held before they were connected."""

import json
from collections.abc import Callable

import pytest

from kvctl.documents import parser
from kvctl.topology.model.file import read_topology
from kvctl.topology.plan import planner
from kvctl.topology.plan.change import Action
from tests.cli.conftest import Result
from tests.support.waiting import until
from tests.topology.conftest import Replicas, source

pytestmark = pytest.mark.guarantee("replicas-1")

KEYS = 200
Done = Callable[..., Result]


@pytest.fixture
def done(run, server):
    """Run a command line that must succeed."""

    def run_well(*args: str) -> Result:
        result = run(*args, "-s", server.url)
        assert result.exit_code == 0, result.transcript()
        return result

    return run_well


@pytest.fixture
def replicas(raw):
    """Replicas by raw JSON."""
    return Replicas(raw)


@pytest.mark.parametrize("writable", [False, True], ids=["two-origins", "writable"])
def test_backlog_of_an_absent_first_origin_arrives_after_other_entries_were_overwritten(
    done, raw, replicas, unique, writable
):
    absent, other, target = unique(), unique(), unique("A")
    more = ["--writable"] if writable else []
    origin = ["--origin", f"bucket={absent},prefix=a", "--force", "missing-origin", "--no-wait"]
    done("aggregate", "create", target, *origin, *more)
    raw.create_bucket(other)
    done("aggregate", "add-origin", target, f"bucket={other},prefix=b")
    for value in (b"1", b"2", b"3"):  # overwrites the aggregate's first entry
        raw.put(target if writable else other, "b.hot" if writable else "hot", value)
    until(lambda: replicas.info(f"KV_{target}")["state"]["first_seq"] > 1)
    raw.create_bucket(absent)
    for number in range(KEYS):
        raw.put(absent, f"k{number}", b"v")
    raw.put(other, "hot", b"4")
    wanted = {f"$KV.{target}.b.hot", *(f"$KV.{target}.a.k{number}" for number in range(KEYS))}
    until(lambda: set(replicas.subjects(f"KV_{target}")) == wanted, within=30)


def test_edit_of_an_aggregate_starts_its_old_sources_at_their_first_entry(done, raw, replicas, unique):
    origin, target = unique(), unique("A")
    raw.create_bucket(origin)
    for number in range(3):
        raw.put(origin, f"k{number}", b"v")
    replicas.aggregate(target, source(origin, target), max_msgs_per_subject=2)
    until(lambda: len(replicas.subjects(f"KV_{target}")) == 3)
    done("bucket", "edit", target, "--description", "d")
    assert replicas.info(f"KV_{target}")["config"]["sources"][0]["opt_start_seq"] == 1
    raw.put(origin, "k3", b"v")
    until(lambda: len(replicas.subjects(f"KV_{target}")) == 4)
    assert replicas.info(f"KV_{target}")["state"]["messages"] == 4  # nothing arrived twice


async def test_plan_reports_a_source_that_skips_its_first_entry(client, raw, replicas, unique):
    origin, target = unique(), unique("A")
    raw.create_bucket(origin)
    replicas.aggregate(target, source(origin, target))
    text = f"version: 1\nbuckets: {{{origin}: {{}}}}\naggregates: {{{target}: {{origins: [{origin}]}}}}"
    topology = read_topology(parser.parse(text.encode(), "t.yaml"))
    (change,) = (await planner.plan(topology, {"": client.api})).changes
    assert (change.action, change.name, [item.field for item in change.differences]) == (
        Action.CHANGE,
        target,
        ["sources"],
    )


def test_aggregate_create_again_adds_a_missing_start_sequence(done, raw, replicas, unique):
    origin, target = unique(), unique("A")
    raw.create_bucket(origin)
    done("aggregate", "create", target, "--origin", origin)
    config = replicas.info(f"KV_{target}")["config"]
    del config["sources"][0]["opt_start_seq"]
    assert "error" not in raw.api(f"STREAM.UPDATE.KV_{target}", config)
    assert json.loads(done("aggregate", "create", target, "--origin", origin, "-o", "json").out)["changed"]
    assert replicas.info(f"KV_{target}")["config"]["sources"][0]["opt_start_seq"] == 1
    assert not json.loads(done("aggregate", "create", target, "--origin", origin, "-o", "json").out)["changed"]
