"""Commands that look for a bucket's readers while the server that holds its mirror and its aggregate is away.

A cluster knows that a stopped server is offline, and still lists the configurations of its streams. For minutes, it
knows no more of a killed server than that it does not answer.
"""

import asyncio
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import kvctl
from kvctl.errors import RefusedError
from kvctl.labs import Lab, run_lab
from tests.cli.conftest import Result, run_process
from tests.cli.dialogue import Dialogue
from tests.support.raw import RawClient
from tests.support.waiting import until

pytestmark = pytest.mark.guarantee("replicas-3", by="kill")

KEYS = 20
FILE = """version: 1
buckets: {O: {replicas: 3}}
mirrors: {MO: {origin: O}}
aggregates: {AO: {origins: [{bucket: O}]}}
"""
PLANS = {
    "changed": "replicas: 3, history: 5",
    "recreated": "replicas: 3, storage: memory",
    "described": "replicas: 3, description: x",
}
"""Settings of `O` in files that do not list its readers."""
SILENT = {("MO", "offline", None), ("KV_AO", "offline", None)}
"""Stream, state and last revision of the readers."""
CLUSTERS = (True, False)
"""Whether the other servers know that one is offline."""
NUMBERS = ("messages", "bytes", "consumers", "last_sequence")
"""Fields of a stream that only its own servers know."""


@dataclass
class Away:
    """A cluster without the server that holds `MO` and `AO`."""

    urls: str
    home: str
    file: Path

    def __call__(self, *args: str) -> Result:
        return run_process(*args, "-s", self.urls)

    def rows(self, *args: str) -> Any:
        return json.loads(self(*args, "-o", "json").out)


@contextmanager
def without_home(file: Path, *, known: bool) -> Iterator[Away]:
    """Start a cluster and stop a server; with `known`, the others know that it is offline."""
    with run_lab("cluster") as lab:
        urls = ",".join(server.url for server in lab.servers.values())
        for name in ("O", "ALONE"):
            _succeed("bucket", "add", name, "--replicas", "3", "-s", urls)
        _succeed("repo", "init", "R", "--replicas", "3", "-s", urls)
        with RawClient(next(iter(lab.servers.values())).url, timeout=30) as raw:
            home = _place_together(raw, urls)
            for number in range(KEYS):
                raw.put("O", f"k{number}", b"v")
            for number in range(5):
                raw.put("O", f"k{number}", b"", {"KV-Operation": "DEL"})
            until(lambda: _messages(raw, "MO") == _messages(raw, "KV_AO") == KEYS, what="all keys in both replicas")
        if known:
            lab.servers[home].stop()
        else:
            lab.servers[home].kill()
        left = [name for name in lab.servers if name != home]
        file.write_text(FILE)
        _until_led(lab, left)
        if known:
            _until_known(lab.servers[left[0]].url)
        yield Away(",".join(lab.servers[name].url for name in left), home, file)


@pytest.fixture(scope="module")
def clusters(tmp_path_factory):
    """Start a cluster that knows that its server is offline, and one that does not: both wait for elections."""
    with ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        starts = [without_home(tmp_path_factory.mktemp("silent") / "topology.yaml", known=known) for known in CLUSTERS]
        started = [pool.submit(stack.enter_context, start) for start in starts]
        yield {known: found.result() for known, found in zip(CLUSTERS, started, strict=True)}


@pytest.fixture
def away(clusters):
    """Return the cluster that knows that its server is offline."""
    return clusters[True]


def test_silent_streams_with_unknown_configuration_may_be_readers(clusters, tmp_path):
    away = clusters[False]
    with ThreadPoolExecutor(10) as pool:
        purge = pool.submit(lambda: asyncio.run(_purge(away.urls)))
        plans = [tmp_path / f"{name}.yaml" for name in PLANS]
        for file, settings in zip(plans, PLANS.values(), strict=True):
            file.write_text(f"version: 1\nbuckets: {{O: {{{settings}}}}}\n")
        lines = (
            "topology audit",
            "topology audit O -o json",
            f"topology audit -f {away.file}",
            "topology audit O --repair --yes",
            "bucket delete O --yes",
            "bucket delete O --yes --force unreachable-stream",
            "stream delete KV_O --yes",
            "bucket compact O --older-than 0s --timeout 30s",
            "bucket edit O --history 3 --dry-run",
            "bucket delete O --dry-run -o json",
            "topology graph -o json",
            "topology status O -o json",
            "topology trace O k7 -o json",
            "doctor -o json",
            "bucket ls -o json",
            "repo delete R --dry-run -o json",
            "repo delete R --yes",
            *(f"topology plan -f {file} -o json" for file in plans),
            f"topology plan -f {plans[0]} --force unreachable-stream",
        )
        done = dict(zip(lines, pool.map(lambda line: away(*line.split()), lines), strict=True))
        audits, delete, forced, stream = lines[:4], *lines[4:7]
        assert {line: done[line].exit_code for line in audits} == dict.fromkeys(audits, 5), done
        assert all("`KV_AO`" in done[line].err and "`MO`" in done[line].err for line in audits), done
        assert (done[delete].exit_code, "--force unreachable-stream" in done[delete].err) == (1, True)
        assert (done[forced].exit_code, "--confirm" in done[forced].err) == (2, True)
        assert done[stream].exit_code == 1
        compact, edit, dry_run, graph, status, trace, doctor, ls = (done[line] for line in lines[7:15])
        # The creation of the consumer that lists deleted keys may get no answer, probably placed on the dead server.
        unanswered = compact.exit_code == 5 and "$JS.API.CONSUMER.CREATE" in compact.err
        assert unanswered or (compact.exit_code, "unreachable-stream" in compact.err) == (1, True), compact
        assert "unreachable-stream" in edit.err
        found = json.loads(dry_run.out)["dependents"]
        assert {(item["stream"], item["state"], item["last_revision"]) for item in found} == SILENT
        assert {item["stream"]: item["kind"] for item in found} == {"MO": "mirror", "KV_AO": "unknown"}
        nodes = {node["stream"]: (node["kind"], node["state"]) for node in json.loads(graph.out)["nodes"]}
        assert (nodes["MO"], nodes["KV_AO"]) == (("mirror", "offline"), ("unknown", "offline"))
        assert {(row["stream"], row["state"], row["revision"]) for row in json.loads(status.out)} == SILENT
        assert json.loads(trace.out)["offline"] == ["KV_AO", "MO"]
        assert "Offline streams that may replicate the key: " in trace.err
        checks = {(item["check"], item["subject"]) for item in json.loads(doctor.out)}
        assert {("offline", "MO"), ("offline", "AO")} <= checks
        rows = {row["stream"]: row for row in json.loads(ls.out)}
        shown = {stream: [rows[stream][name] for name in ("kind", "state", "values")] for stream in ("KV_AO", "MO")}
        assert shown == {"KV_AO": ["unknown", "offline", None], "MO": ["mirror", "offline", None]}
        listed, repo = (done[line] for line in lines[15:17])
        assert json.loads(listed.out)["dependents"] == []
        assert (repo.exit_code, "may be mirrors of `R`: `KV_AO`" in repo.err) == (2, True)
        assert "--confirm" in repo.err
        changed, recreated, described, overridden = (done[line] for line in lines[17:])
        for plan in (changed, recreated):
            (hazard,) = [item for item in json.loads(plan.out)["hazards"] if item["name"] == "unreachable-stream"]
            assert (plan.exit_code, "`MO`" in hazard["evidence"], "`KV_AO`" in hazard["evidence"]) == (1, True, True)
            assert "--force unreachable-stream" in plan.err
        assert (described.exit_code, overridden.exit_code) == (0, 0), (described, overridden)
        with pytest.raises(RefusedError, match="`MO` does not answer and may replicate from it"):
            purge.result()
        with RawClient(away.urls.split(",")[0]) as raw:
            assert raw.api("STREAM.INFO.KV_O")["state"]["messages"] == KEYS


def test_trace_names_the_replicas_whose_servers_are_offline(away):
    found = away.rows("topology", "trace", "O", "k7")
    assert {row["name"]: (row["key"], row["state"]) for row in found["replicas"]} == {
        "MO": ("k7", "offline"),
        "AO": ("k7", "offline"),
    }
    unknown = away("topology", "trace", "O", "never-written")  # an offline replica may hold it
    assert (unknown.exit_code, "offline" in unknown.out) == (5, True)


async def _purge(urls: str) -> None:
    async with kvctl.connect(urls) as client:
        await client.jetstream.stream("KV_O").purge()


def _place_together(raw: RawClient, urls: str) -> str:
    """Place the mirror and the aggregate on one server and return its name.

    Both are empty and made again together: what one of them holds may send the other elsewhere each time.
    """
    _succeed("mirror", "create", "MO", "--origin", "O", "-s", urls)
    _succeed("aggregate", "create", "AO", "--origin", "bucket=O", "-s", urls)
    configs = {stream: raw.api(f"STREAM.INFO.{stream}")["config"] for stream in ("MO", "KV_AO")}

    def home() -> str | None:
        leaders = [raw.api(f"STREAM.INFO.{stream}").get("cluster", {}).get("leader") for stream in configs]
        if leaders[0] and leaders[0] == leaders[1]:
            return str(leaders[0])
        for stream in configs:
            raw.api(f"STREAM.DELETE.{stream}")
        for stream, config in configs.items():
            raw.api(f"STREAM.CREATE.{stream}", config)
        return None

    return str(until(home, what="mirror and aggregate are on one server"))


def _succeed(*args: str) -> None:
    """Run a command that can be repeated until it succeeds, as after a timeout on a loaded machine."""
    results: list[Result] = []

    def succeeds() -> bool:
        results.append(run_process(*args))
        return results[-1].exit_code == 0

    until(succeeds, what=" ".join(args))


def _messages(raw: RawClient, stream: str) -> int:
    return int(raw.api(f"STREAM.INFO.{stream}").get("state", {}).get("messages", 0))


def _until_led(lab: Lab, left: list[str]) -> None:
    """Wait until the remaining servers have a leader for themselves and for the buckets."""

    def led() -> bool:
        with RawClient(lab.servers[left[0]].url, timeout=1) as raw:
            try:
                infos = [raw.api(f"STREAM.INFO.KV_{name}") for name in ("O", "ALONE")]
                raw.api("STREAM.NAMES")  # which the leader of the cluster answers
            except TimeoutError:
                return False
        return all(info.get("cluster", {}).get("leader") in left for info in infos)

    until(led, what="leaders among the remaining servers")


def _until_known(url: str) -> None:
    """Wait until the cluster knows the server is offline and lists the configurations of its streams."""

    def listed() -> set[str]:
        with RawClient(url, timeout=30) as raw:
            return {info["config"]["name"] for info in raw.api("STREAM.LIST").get("streams") or []}

    until(lambda: {"MO", "KV_AO"} <= listed(), what="configurations of the offline streams")


def test_audit_of_silent_replicas_exits_5(away):
    for args in ((), ("O",), ("--repair", "--yes")):
        result = away("topology", "audit", *args, "-o", "json")
        assert result.exit_code == 5, (args, result)
        rows = json.loads(result.out)
        found = {(row["replica"], row["consistent"], row["state"], row["keys"], row["missing"]) for row in rows}
        assert found == {("MO", None, "offline", None, None), ("AO", None, "offline", None, None)}
        assert "MO" in result.err
        assert "AO" in result.err


def test_audit_of_a_file_with_silent_replicas_exits_5(away):
    result = away("topology", "audit", "-f", str(away.file))
    assert result.exit_code == 5, result
    assert "topology apply" not in result.err


def test_bucket_delete_asks_for_the_name_of_an_origin_of_silent_replicas(away):
    for args in (("bucket", "delete", "O"), ("stream", "delete", "KV_O")):
        result = away(*args, "--yes")
        assert (result.exit_code, "--confirm" in result.err) == (2, True), result
        assert "MO" in result.err
        assert "AO" in result.err
    found = away.rows("bucket", "delete", "O", "--dry-run")["dependents"]
    assert {(item["stream"], item["state"], item["last_revision"]) for item in found} == SILENT
    assert {item["kind"] for item in found} == {"mirror", "aggregate"}
    assert away.rows("bucket", "delete", "ALONE", "--dry-run")["dependents"] == []


def test_compaction_under_silent_replicas_is_refused(away):
    result = away("bucket", "compact", "O", "--older-than", "0s")
    assert (result.exit_code, "lagging-replica" in result.err) == (1, True), result
    with RawClient(away.urls.split(",")[0]) as raw:
        assert raw.api("STREAM.INFO.KV_O")["state"]["messages"] == KEYS


def test_graph_draws_silent_replicas(away):
    graph = away.rows("topology", "graph")
    nodes = {node["stream"]: (node["kind"], node["state"]) for node in graph["nodes"]}
    assert nodes == {"KV_O": ("bucket", None), "MO": ("mirror", "offline"), "KV_AO": ("aggregate", "offline")}
    assert {(edge["origin"], edge["replica"], edge["state"], edge["lag"]) for edge in graph["edges"]} == {
        ("KV_O", "MO", "offline", None),
        ("KV_O", "KV_AO", "offline", None),
    }


def test_status_reports_silent_replicas_as_offline(away):
    for args in ((), ("O",)):
        rows = away.rows("topology", "status", *args)
        assert {(row["stream"], row["state"], row["revision"]) for row in rows} == SILENT
        assert {(row["origin"], row["lag"], row["last_seen"]) for row in rows} == {("O", None, None)}
        assert {row["kind"]: row["cluster"] for row in rows} == {"mirror": "lab", "aggregate": None}
        assert all(f"`{away.home}`" in row["evidence"] for row in rows)


def test_listings_show_no_counts_for_silent_streams(away):
    rows = {row["stream"]: row for row in away.rows("bucket", "ls")}
    assert rows["KV_O"]["kind"] == "bucket"
    for stream in ("MO", "KV_AO"):
        row = rows[stream]
        assert (row["state"], row["values"], row["bytes"]) == ("offline", None, None)
        assert [origin["name"] for origin in row["origins"]] == ["O"]
    mirrors = away("mirror", "ls", "-o", "json")
    (row,) = json.loads(mirrors.out)
    assert (row["name"], row["state"], row["values"], row["lag"]) == ("MO", "offline", None, None)
    assert (mirrors.exit_code, mirrors.err) == (0, "")
    streams = {row["name"]: [row[name] for name in NUMBERS] for row in away.rows("stream", "ls")}
    assert (streams["MO"], streams["KV_AO"]) == ([None] * 4, [None] * 4)
    assert streams["KV_O"][0] == KEYS


@pytest.mark.parametrize("command", ["mirror show MO", "bucket show AO", "aggregate show AO", "stream show MO"])
def test_show_of_a_silent_replica_has_what_others_know(away, command):
    row = away.rows(*command.split())
    assert (row["state"], row["replicas"], row["config"]["name"]) == ("offline", 1, row.get("stream", row["name"]))
    assert {row.get(name) for name in ("values", "bytes", "messages", "last_revision", "last_sequence")} == {None}
    assert [peer["name"] for peer in row["cluster"]["replicas"]] == [away.home]
    assert "offline" in away(*command.split()).err


def test_a_narrow_list_of_streams_keeps_the_state_of_silent_ones(away):
    shown = run_process("stream", "ls", "-s", away.urls, tty=True, env={"COLUMNS": "60"}).out
    assert re.search(r"MO +mirror .*offline", shown)


def test_show_of_a_silent_mirror_has_no_link_that_is_ok(away):
    assert [origin["state"] for origin in away.rows("mirror", "show", "MO")["origins"]] == ["offline"]


def test_top_lists_silent_streams_and_says_that_they_are_offline(away):
    with Dialogue("top", "-s", away.urls, COLUMNS="100", LINES="30") as dialogue:
        shown = dialogue.hear("quit")
    for name in ("AO", "MO"):
        assert re.search(rf"{name} +(mirror|aggregate) +✗ offline  from O ✗", shown)
    assert re.search(r" O +bucket .*AO ✗  MO ✗", shown)


def test_show_of_an_origin_names_its_offline_replicas(away):
    found = {item["stream"]: item for item in away.rows("bucket", "show", "O")["dependents"]}
    assert {(item["state"], item["lag"], item["last_revision"]) for item in found.values()} == {("offline", None, None)}
    assert set(found) == {"MO", "KV_AO"}


def test_doctor_reports_each_silent_stream_once(away):
    found = [item for item in away.rows("doctor") if item["subject"] in ("MO", "AO")]
    assert {(item["severity"], item["check"], item["subject"]) for item in found} == {
        ("error", "offline", "MO"),
        ("error", "offline", "AO"),
    }
    assert all(f"`{away.home}`" in item["evidence"] for item in found)
