"""`kvctl bucket`: what people and scripts see."""

import json
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from kvctl.cli.bucket.details import bucket_row, cluster_row
from kvctl.cli.facts import of_stream
from kvctl.cli.records import BUCKET, BUCKET_ROW
from kvctl.contexts import Context, ContextStore
from kvctl.server import run_server
from kvctl.topology.health.overview import Overview, Reads
from tests.cli.conftest import Result
from tests.cli.dialogue import Dialogue
from tests.support.raw import RawClient
from tests.support.waiting import until

Bucket = Callable[..., Result]
VERSIONS = {r'"_nats\.ver": "[\d.]+"': '"_nats.ver": "N"', r'"_nats\.level": "\d+"': '"_nats.level": "N"'}


@pytest.fixture
def seeds(own_server):
    """A client on the test's own server that shares no code with kvctl."""
    with RawClient(own_server.url) as client:
        yield client


@pytest.fixture
def bucket(run, own_server, seeds):
    """`kvctl bucket ...` on the test's own server, where names can be fixed."""
    return lambda *args, **settings: run("bucket", *args, env={"NATS_URL": own_server.url}, **settings)


@pytest.fixture
def orders(seeds):
    """A bucket of three keys, one of them deleted: `a` has three revisions, `b` one."""
    seeds.create_bucket("orders", max_msgs_per_subject=5)
    for number in range(3):
        seeds.put("orders", "a", b"%d" % number)
    seeds.put("orders", "b", b"x")
    seeds.put("orders", "c", b"x")
    seeds.put("orders", "c", b"", {"KV-Operation": "DEL"})
    return "orders"


def mirror(seeds: RawClient, name: str, origin: str = "KV_orders") -> None:
    """A mirror stream, caught up."""
    stream = {"name": name, "mirror": {"name": origin}, "storage": "memory", "max_msgs_per_subject": 5}
    assert "error" not in seeds.api(f"STREAM.CREATE.{name}", stream)
    wanted = seeds.api(f"STREAM.INFO.{origin}")["state"]["last_seq"]
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        info = seeds.api(f"STREAM.INFO.{name}")
        if info["state"]["last_seq"] == wanted and info["mirror"]["active"] > 0:
            return
        time.sleep(0.02)
    raise AssertionError(f"{name} did not catch up")


# -- add ---------------------------------------------------------------------------------------------------


def test_add_says_so_in_a_pipe_as_on_a_terminal(bucket, snapshot):
    assert bucket("add", "orders") == snapshot
    assert bucket("add", "stock", tty=True) == snapshot


def test_every_setting_has_its_option(bucket, seeds):
    options = (
        "--description d --history 3 --ttl 7d --marker-ttl 1h --replicas 1 --storage memory --max-value-size 1KiB "
        "--max-bytes 1MiB --compress --metadata owner=a=b --metadata team= --republish $KV.all.>=copies.> "
        "--republish-headers-only --atomic"
    )
    made = bucket("add", "all", *options.split())
    assert made.exit_code == 0, made.err
    config = seeds.api("STREAM.INFO.KV_all")["config"]
    metadata = {name: text for name, text in config["metadata"].items() if not name.startswith("_nats.")}
    assert metadata == {"owner": "a=b", "team": ""}
    assert config["republish"] == {"src": "$KV.all.>", "dest": "copies.>", "headers_only": True}
    assert (config["max_msg_size"], config["max_bytes"], config["storage"]) == (1024, 1 << 20, "memory")
    assert (config["max_msgs_per_subject"], config["max_age"], config["compression"]) == (3, 7 * 86400 * 10**9, "s2")
    assert (config["allow_atomic"], config["subject_delete_marker_ttl"]) == (True, 3600 * 10**9)


def test_first_revision_continues_above_those_of_an_earlier_bucket(bucket, seeds):
    assert bucket("add", "orders", "--first-revision", "1000").exit_code == 0
    seeds.put("orders", "key", b"v")
    assert seeds.api("STREAM.INFO.KV_orders")["state"]["last_seq"] == 1000
    assert bucket("add", "orders", "--first-revision", "1000").exit_code == 0
    assert "first_revision: 1000 -> none" in bucket("add", "orders").err
    refused = bucket("edit", "orders", "--first-revision", "2000")
    assert refused.exit_code == 1
    assert "first revision of `orders` cannot be changed" in refused.err
    assert bucket("copy", "orders", "other", "--data", "latest", "--first-revision", "7").exit_code == 0
    assert seeds.api("STREAM.INFO.KV_other")["state"]["last_seq"] == 7


def test_adding_again_is_no_error_and_says_so(bucket, snapshot):
    bucket("add", "orders", "--history", "2")
    assert bucket("add", "orders", "--history", "2") == snapshot
    assert bucket("add", "orders", "--history", "2", "-q").stderr == b""
    assert bucket("create", "orders", "--history", "2", "-o", "json") == snapshot


def test_adding_with_another_configuration_shows_the_differences(bucket, snapshot):
    bucket("add", "orders", "--history", "2", "--metadata", "owner=a")
    assert bucket("new", "orders", "--ttl", "60s", "--atomic") == snapshot


def test_add_json_says_what_was_made(bucket):
    made = {"name": "orders", "stream": "KV_orders", "changed": True}
    assert json.loads(bucket("add", "orders", "-o", "json").out) == made
    assert bucket("add", "stock", "-o", "name").out == "stock\n"


def test_add_dry_run_shows_the_stream_and_makes_nothing(bucket, seeds, snapshot):
    planned = bucket("add", "orders", "--history", "5", "--dry-run", "-o", "json")
    assert planned == snapshot
    assert bucket("add", "orders", "--history", "5", "--dry-run").out == "+ bucket `orders`\n    history  5\n"
    assert bucket("add", "orders", "--dry-run", "-o", "name").out == "orders\n"
    assert bucket("ls").out == ""
    assert "error" not in seeds.api("STREAM.CREATE.KV_orders", json.loads(planned.out))


def test_a_server_too_small_for_the_replicas_refuses(bucket, snapshot):
    assert bucket("add", "orders", "--replicas", "3") == snapshot
    assert bucket("ls", "-o", "name").out == ""


@pytest.mark.guarantee("writing-11")
def test_read_only_refuses_every_change(bucket, orders, tmp_path, seeds):
    before = seeds.api("STREAM.INFO.KV_orders")
    for line in ("add stock", "edit orders --history 6", "delete orders --yes", "compact orders", "copy orders stock"):
        result = bucket(*line.split(), "--read-only")
        assert (result.exit_code, "read-only" in result.err) == (1, True), line
    for args in (("ls",), ("show", "orders"), ("backup", "orders", str(tmp_path / "b")), ("diff", "orders", "orders")):
        assert bucket(*args, "--read-only").exit_code == 0
    after = seeds.api("STREAM.INFO.KV_orders")
    assert (after["config"], after["state"]["messages"]) == (before["config"], before["state"]["messages"])


# -- ls, show ----------------------------------------------------------------------------------------------


def assorted(seeds: RawClient) -> None:
    """One stream of each kind, with bucket `orders` there."""
    sources = [{"name": "KV_orders", "subject_transforms": [{"src": "$KV.orders.>", "dest": "$KV.all.o.>"}]}]
    seeds.create_bucket("all", subjects=[], sources=sources, duplicate_window=0, description="all orders")
    mirror(seeds, "copy")
    seeds.api("STREAM.CREATE.KV_logs", {"name": "KV_logs", "subjects": ["logs.>"]})
    seeds.api("STREAM.CREATE.events", {"name": "events", "subjects": ["events.>"]})
    seeds.create_bucket("half", metadata={"kvctl.unfinished": "x"}, max_age=3600 * 10**9)
    deadline = time.monotonic() + 60
    while seeds.api("STREAM.INFO.KV_all")["state"]["messages"] < 3 and time.monotonic() < deadline:
        time.sleep(0.02)


def test_stats_count_keys_and_sizes(bucket, seeds, orders):
    seeds.put("orders", "eu.a", b"12345")
    found = json.loads(bucket("stats", "orders", "--by-prefix", "1", "-o", "json").out)
    names = "name last_revision history keys deleted entries bytes held changed_today".split()
    assert list(found.items())[:9] == list(zip(names, ["orders", 7, 5, 3, 1, 7, 7, 10, 4], strict=True))
    assert (found["writes_a_day"], found["more_prefixes"]) == (None, 0)
    assert [(row["prefix"], row["keys"], row["bytes"]) for row in found["prefixes"]] == [("eu", 1, 5), ("", 2, 2)]
    shown = bucket("stats", "orders", "--by-prefix", "1", "--limit", "1", tty=True)
    assert "without a dot" not in shown.out
    assert "Not listed: 1 smaller group; list more" in shown.err
    found = json.loads(bucket("stats", "orders", "--largest", "1", "-o", "json").out)
    assert (found["prefixes"], found["largest"]) == ([], [{"key": "eu.a", "bytes": 5}])
    stored = seeds.api("STREAM.INFO.KV_orders")["state"]["bytes"]
    assert found["stored"] == stored
    shown = bucket("stats", "orders", "--largest", "1", tty=True).out.splitlines()
    assert shown[:4] == [
        "orders  statistics of a bucket",
        "",
        "  keys 3 · deleted 1 · entries 7 · revision 7 · history 5",
        f"  values 7 B · all revisions 10 B · stored {stored} B",
    ]
    lines = bucket("stats", "orders", "--largest", "1", "--by-prefix", "1").out.splitlines()
    assert lines[:2] == ["name\torders", "last_revision\t7"]
    assert {"prefix\teu\t1\t0\t1\t5", "largest\teu.a\t5"} < {*lines}
    assert bucket("stats", "nope").exit_code == 3


def test_seal_asks_and_is_permanent(run, own_server, bucket, orders):
    assert bucket("seal", "orders").exit_code == 2
    assert json.loads(bucket("seal", "orders", "--dry-run", "-o", "json").out)["changed"] is True
    sealed = {"name": "orders", "sealed": True, "changed": True}
    assert json.loads(bucket("seal", "orders", "--yes", "-o", "json").out) == sealed
    again = bucket("seal", "orders")
    assert (again.exit_code, again.out) == (0, "Bucket `orders` is already sealed\n")
    refused = run("put", "orders", "a", "x", env={"NATS_URL": own_server.url})
    assert refused.exit_code == 1
    assert refused.err == "error: Bucket `orders` is sealed: it is permanently read-only\n"
    assert run("get", "orders", "a", env={"NATS_URL": own_server.url}).out == "2"
    assert "permanently read-only" in bucket("show", "orders", tty=True).out
    assert bucket("seal", "nope", "--yes").exit_code == 3


def test_ls_shows_every_kind(bucket, seeds, orders, snapshot):
    assorted(seeds)
    ages = {r"(just now|\d+s ago)( *)": "AGE ", r"CREATED +": "CREATED "}
    assert bucket("ls", "--all", tty=True).masked(ages) == snapshot
    assert bucket("list", "--all", "-o", "name").out.split() == ["KV_logs", "all", "copy", "half", "orders"]
    rows = json.loads(bucket("ls", "--all", "-o", "json").out)
    assert [row["kind"] for row in rows] == ["stream", "aggregate", "mirror", "incomplete", "bucket"]
    names = "name stream kind values bytes history ttl replicas last_revision created origins description last_write"
    assert list(rows[0]) == [*names.split(), "cluster", "state"]
    assert [row["last_write"] is None for row in rows] == [row["values"] == 0 for row in rows]


def test_ls_lists_what_can_be_read_by_its_name_once(run, own_server, bucket, seeds, orders):
    assorted(seeds)
    assert bucket("ls", "-o", "name").out.split() == ["all", "copy", "orders"]
    for name in bucket("ls", "-o", "name").out.split():
        assert run("dump", name, env={"NATS_URL": own_server.url}).exit_code == 0
    shown = bucket("ls", tty=True)
    assert "Not listed: 1 incomplete, 1 stream. List everything with `--all`" in shown.err + shown.out
    seeds.create_bucket("copy")  # made by another tool: it hides the mirror of this name
    assert bucket("ls", "-o", "name").out.split() == ["all", "copy", "orders"]
    assert bucket("ls", "--all", "-o", "name").out.split().count("copy") == 2


@pytest.mark.parametrize(
    ("args", "names"),
    [
        (["--kind", "mirror,aggregate"], ["all", "copy"]),
        (["--kind", "mirror", "--kind", "incomplete"], ["copy", "half"]),
        (["--kind", "table"], []),
        (["o*"], ["orders"]),
        (["o*", "al?"], ["all", "orders"]),
        (["orders"], ["orders"]),
        (["h*"], []),
        (["h*", "--all"], ["half"]),
        (["c*", "--kind", "bucket"], []),
    ],
    ids=" ".join,
)
def test_ls_filters_by_kind_and_name(bucket, seeds, orders, args, names):
    assorted(seeds)
    result = bucket("ls", *args, "-o", "name")
    assert (result.exit_code, result.out.split()) == (0, names)


@pytest.mark.parametrize(
    ("args", "names"),
    [
        (["--sort", "size"], ["large", "orders", "none"]),
        (["--sort", "-bytes", "--limit", "2"], ["none", "orders"]),
        (["--sort=-Name"], ["orders", "none", "large"]),
        (["--sort", "last write", "--limit", "1", "-o", "json"], ["large"]),
        (["--limit", "1"], ["large"]),
    ],
    ids=" ".join,
)
def test_ls_sorts_by_a_column_and_limits_its_rows(bucket, seeds, orders, args, names):
    seeds.create_bucket("none")
    seeds.create_bucket("large")
    seeds.put("large", "k", b"v" * 1000)
    shown = bucket("ls", *args).out
    found = (
        [row["name"] for row in json.loads(shown)]
        if "json" in args
        else [line.split()[0] for line in shown.splitlines()]
    )
    assert found == names
    assert bucket("ls", "--sort", "sise").exit_code == 2
    assert "Not listed: 1 more" in bucket("ls", "--limit", "2", tty=True).err


def test_ls_watch_redraws_the_list(own_server, orders):
    with Dialogue("bucket", "ls", "-w", "--interval", "200ms", "-s", own_server.url) as dialogue:
        live = "".join(dialogue.hear("\x1b[H") for _ in range(3))
        dialogue.process.send_signal(signal.SIGINT)
        assert dialogue.end() == 130
    assert "orders" in live


def test_ls_in_a_pipe_is_a_record_a_line(bucket, orders):
    fields = bucket("ls").out.removesuffix("\n").split("\t")
    assert fields[:3] == ["orders", "bucket", "6"]
    assert len(fields) == len(BUCKET_ROW.columns)
    assert fields[5] == ""


def test_no_buckets_is_no_error(bucket, snapshot):
    assert bucket("ls", tty=True) == snapshot
    assert (bucket("ls").out, bucket("ls", "-o", "json").out) == ("", "[]\n")


def test_show_has_the_contract_s_fields(bucket, orders, snapshot):
    shown = bucket("show", "orders", "-o", "json")
    assert shown.masked({**VERSIONS, r'"round_trip": [\d.]+': '"round_trip": S'}) == snapshot
    wanted = (
        "name stream kind backing_store compressed values history bytes ttl last_revision created replicas "
        "alternates dependents config"
    )
    document = json.loads(shown.out)
    assert set(wanted.split()) <= document.keys()
    plain = ["" if document[name] is None else str(document[name]) for name in BUCKET.columns]
    assert bucket("show", "orders", "-o", "tsv").out.rstrip("\n").lower().split("\t") == [
        text.lower() for text in plain
    ]
    lines = [line.split("\t") for line in bucket("show", "orders").out.splitlines()]
    lists = {name for name, value in document.items() if isinstance(value, list)}
    assert [name for name, _ in lines if name in document and name not in lists] == [
        name for name in document if name not in lists
    ]
    assert ["values", str(document["values"])] in lines
    assert [value for name, value in lines if name == "alternate"] == [
        one["served_by"] for one in document["alternates"]
    ]


def test_show_has_the_same_fields_when_its_servers_are_silent(bucket, orders):
    shown = json.loads(bucket("show", "orders", "-o", "json").out)
    silent = bucket_row(Overview("orders", "KV_orders", None, None, reads=Reads(answers={"ORDERS_NYC": 0.001})))
    assert list(silent) == list(shown)
    assert [name for name in ("values", "created", "config", "dependents") if silent[name] is not None] == []
    assert (silent["name"], silent["state"]) == ("orders", "offline")
    assert silent["answered_by"] == [{"stream": "ORDERS_NYC"}]


def test_offline_stream_has_neither_the_cluster_nor_the_zeros_of_the_server_that_answers():
    """Servers fill in their own cluster, and 0 for what they do not know of peers that went away."""
    config, state = {"name": "KV_A", "num_replicas": 1}, {"messages": 0, "bytes": 0, "first_seq": 0, "last_seq": 0}
    peers = [{"name": "lon1", "offline": True}, {"name": "lon2", "current": True, "active": 5 * 10**8, "lag": 0}]
    info = {"config": config, "state": state, "created": "2026-01-01T00:00:00Z"}
    info["cluster"] = {"name": "nyc", "replicas": peers}
    led, unled = cluster_row(info["cluster"] | {"leader": "nyc1"}), cluster_row(info["cluster"])
    for row in (led, unled):
        assert [(peer["last_seen"], peer["lag"]) for peer in row["replicas"]] == [(None, None), (0.5, 0)]
    away = cluster_row(info["cluster"], offline=True)
    assert (away["name"], {peer["last_seen"] for peer in away["replicas"]}) == (None, {None})
    assert cluster_row(info["cluster"], "lon", offline=True)["name"] == "lon"
    assert (of_stream(info, offline=True)["cluster"], of_stream(info, offline=True)["state"]) == (None, "offline")
    assert (of_stream(info)["cluster"], of_stream(info)["state"]) == ("nyc", "no leader")


def test_show_on_a_terminal(bucket, seeds, orders, snapshot):
    assorted(seeds)
    shared = {  # these vary
        r"(?<=Reads answered by, nearest first\n)(?:  [#\d─].+\n)+": "ALTERNATES\n"
    }
    for name in ("orders", "copy", "all", "half", "logs"):
        assert bucket("show", name, tty=True).masked(shared) == snapshot


def test_show_names_every_setting(bucket, snapshot):
    options = (
        "--description d --marker-ttl 1h --max-value-size 1KiB --max-bytes 1MiB --metadata owner=a "
        "--republish $KV.all.>=copies.> --atomic --ttl 7d"
    )
    bucket("add", "all", *options.split())
    assert bucket("info", "all", tty=True) == snapshot


def test_show_what_is_not_there(bucket, orders, snapshot):
    assert bucket("show", "order") == snapshot


def test_a_name_with_escapes_does_not_reach_the_terminal(bucket, seeds):
    seeds.create_bucket("evil", description="\x1b[31mred\x07", metadata={"\x1b]0;x": "\x1b[2J"})
    for args in (("ls",), ("show", "evil")):
        shown = bucket(*args, tty=True)
        assert b"\x1b" not in shown.stdout
        assert b"\x07" not in shown.stdout
    assert json.loads(bucket("show", "evil", "-o", "json").out)["description"] == "\x1b[31mred\x07"


def test_a_cluster_s_servers_and_lag_are_shown(cluster, run, bucket_name):
    env = {"NATS_URL": cluster.contexts["cluster"].url}
    assert run("bucket", "add", bucket_name, "--replicas", "3", env=env).exit_code == 0
    shown = json.loads(run("bucket", "show", bucket_name, "-o", "json", env=env).out)
    servers = {shown["cluster"]["leader"], *(peer["name"] for peer in shown["cluster"]["replicas"])}
    assert servers == {"n1", "n2", "n3"}
    peers = shown["cluster"]["replicas"]
    assert {name for peer in peers for name in peer} == {"name", "current", "offline", "last_seen", "lag"}
    assert shown["replicas"] == 3
    for command in (("bucket", "show", bucket_name), ("stream", "show", f"KV_{bucket_name}")):
        text = run(*command, env=env, tty=True).out.partition("Servers\n")[2]
        roles = dict(line.split()[:2] for line in text.splitlines()[2:5])
        followers = {peer["name"]: "follower" for peer in shown["cluster"]["replicas"]}
        assert roles == {shown["cluster"]["leader"]: "leader", **followers}


def test_placement_that_no_server_satisfies_names_the_clusters_seen(supercluster, run, bucket_name):
    env = {"NATS_URL": supercluster.contexts["lon"].url}
    result = run("bucket", "add", bucket_name, "--cluster", "par", "--tag", "ssd", env=env)
    assert (result.exit_code, "Cluster `par` does not exist, or is not in view" in result.err) == (1, True)
    assert "Clusters: `lon` (1 server)" in result.err
    result = run("bucket", "add", bucket_name, "--cluster", "lon", "--replicas", "3", env=env)
    assert (result.exit_code, "Cluster `lon` has 1 server, 3 are needed" in result.err) == (1, True)
    result = run("bucket", "add", bucket_name, "--cluster", "lon", "--tag", "ssd", env=env)
    assert (result.exit_code, "No server in cluster `lon` with tags `ssd` can store" in result.err) == (1, True)


# -- edit --------------------------------------------------------------------------------------------------


def test_edit_shows_the_difference_first(bucket, orders, snapshot):
    args = ("--history", "9", "--metadata", "owner=a", "--max-bytes", "10MB")
    assert bucket("edit", "orders", *args) == snapshot
    assert bucket("edit", "orders", *args, tty=True) == snapshot
    assert bucket("edit", "orders", "--clear", "metadata.owner", "--clear", "max-bytes", "-o", "json") == snapshot


@pytest.mark.guarantee("buckets-9")
def test_an_edit_that_loses_data_is_refused(bucket, seeds, orders, snapshot):
    before = seeds.api("STREAM.INFO.KV_orders")
    assert bucket("edit", "orders", "--history", "1", "--ttl", "1h", "--max-bytes", "10") == snapshot
    after = seeds.api("STREAM.INFO.KV_orders")
    assert (after["config"], after["state"]) == (before["config"], before["state"])
    assert bucket("edit", "orders", "--history", "1", "--force", "lossy-edit").exit_code == 0
    assert seeds.api("STREAM.INFO.KV_orders")["state"]["messages"] == 3


def test_edit_dry_run_prints_the_difference_and_changes_nothing(bucket, seeds, orders, snapshot):
    before = seeds.api("STREAM.INFO.KV_orders")["config"]
    args = ("edit", "orders", "--history", "1", "--ttl", "60s", "--dry-run")
    assert bucket(*args) == snapshot
    assert bucket(*args, tty=True) == snapshot
    assert bucket(*args, "-o", "json") == snapshot
    assert seeds.api("STREAM.INFO.KV_orders")["config"] == before


def test_an_edit_of_nothing(bucket, orders, snapshot):
    assert bucket("edit", "orders", "--history", "5") == snapshot
    assert bucket("edit", "none", "--history", "5").exit_code == 3
    assert bucket("edit", "orders", "--storage", "memory") == snapshot


# -- delete ------------------------------------------------------------------------------------------------


def test_delete_asks(bucket, orders, snapshot):
    assert bucket("delete", "orders") == snapshot
    assert bucket("delete", "orders", tty=True, stdin=b"n\n") == snapshot
    assert bucket("delete", "orders", tty=True, stdin=b"y\n") == snapshot
    assert bucket("delete", "orders", "--yes") == snapshot


@pytest.mark.parametrize("verb", ["delete", "del", "rm"])
def test_delete_with_yes(bucket, orders, verb):
    result = bucket(verb, "orders", "-y")
    assert (result.exit_code, result.out, result.err) == (0, "Deleted bucket `orders`\n", "")
    assert bucket("ls").out == ""


def test_deleting_what_others_replicate_needs_its_name(bucket, seeds, orders, snapshot):
    mirror(seeds, "copy")
    assert bucket("delete", "orders", "--yes") == snapshot
    assert bucket("delete", "orders", "--confirm", "order") == snapshot
    assert bucket("delete", "orders", tty=True, stdin=b"y\n") == snapshot
    assert (
        bucket("delete", "orders", "--dry-run", "-o", "json").masked({r'"last_seen": [\d.e-]+': '"last_seen": N'})
        == snapshot
    )
    assert "orders" in bucket("ls", "-o", "name").out.split()
    assert bucket("delete", "orders", tty=True, stdin=b"orders\n") == snapshot
    assert bucket("ls", "-o", "name").out.split() == ["copy"]


def test_a_dry_deletion_looks_like_a_plan(bucket, seeds, orders):
    mirror(seeds, "copy")
    shown = bucket("delete", "orders", "--dry-run").out.splitlines()
    assert (shown[0], shown[2]) == ("- bucket `orders`", "    mirror `copy` replicates from it, and would stop")
    assert shown[1].startswith("    deletes 6 entries (")


def test_deleting_a_mirror_says_so_and_leaves_the_origin(bucket, seeds, orders, snapshot):
    mirror(seeds, "copy")
    assert bucket("delete", "copy", tty=True, stdin=b"y\n") == snapshot
    assert bucket("ls", "-o", "name").out.split() == ["orders"]


# -- copy, diff, compact -----------------------------------------------------------------------------------


def test_copy_and_diff(bucket, seeds, orders, snapshot):
    assert bucket("copy", "orders", "empty") == snapshot
    assert bucket("copy", "orders", "latest", "--data", "latest", tty=True) == snapshot
    assert bucket("copy", "orders", "whole", "--data", "history", "-o", "json") == snapshot
    assert bucket("diff", "orders", "whole", "--exit-code") == snapshot
    seeds.put("whole", "a", b"changed")
    seeds.put("whole", "new", b"")
    seeds.put("whole", "b", b"", {"KV-Operation": "DEL"})
    assert bucket("diff", "orders", "whole", "--exit-code") == snapshot
    assert bucket("diff", "orders", "whole", "-o", "json") == snapshot
    assert bucket("diff", "orders", "whole", tty=True) == snapshot
    assert seeds.api("STREAM.INFO.KV_whole")["state"]["messages"] == 9


def test_copy_refuses(bucket, orders, snapshot):
    bucket("add", "other", "--history", "2")
    for args in (("orders", "orders"), ("orders", "other"), ("none", "new")):
        assert bucket("copy", *args) == snapshot
    assert bucket("ls", "-o", "name").out.split() == ["orders", "other"]


def test_copy_dry_run_shows_the_stream(bucket, orders):
    planned = json.loads(bucket("copy", "orders", "new", "--dry-run", "--replicas", "3", "-o", "json").out)
    assert (planned["name"], planned["subjects"], planned["num_replicas"]) == ("KV_new", ["$KV.new.>"], 3)
    assert bucket("ls", "-o", "name").out.split() == ["orders"]


def test_copy_and_diff_to_another_context(bucket, server, raw, orders, home, unique):
    ContextStore().save(Context(name="staging", url=server.url))
    name = unique()
    copied = bucket("copy", "orders", name, "--data", "history", "--to-context", "staging")
    assert copied.exit_code == 0, copied.err
    assert raw.api(f"STREAM.INFO.KV_{name}")["state"]["messages"] == 6
    assert bucket("diff", "orders", name, "--to-context", "staging", "--exit-code").exit_code == 0
    raw.put(name, "z", b"")
    assert bucket("diff", "orders", name, "--to-context", "staging", "--exit-code").exit_code == 8
    assert bucket("diff", "orders", name, "--to-context", "nowhere").exit_code == 3
    assert bucket("ls", "-o", "name").out.split() == ["orders"]


def test_compact(bucket, seeds, orders, snapshot):
    assert bucket("compact", "orders", "--dry-run") == snapshot
    assert bucket("compact", "orders", "--older-than", "1h", "-o", "json") == snapshot
    assert seeds.api("STREAM.INFO.KV_orders")["state"]["messages"] == 6
    assert bucket("compact", "orders", tty=True) == snapshot
    assert seeds.api("STREAM.INFO.KV_orders")["state"]["messages"] == 4
    assert bucket("compact", "orders", "--dry-run", tty=True) == snapshot
    again = bucket("compact", "orders")
    assert (again.out, again.err) == ("orders\t0\t0\t0\n", "Removed 0 deleted keys (0 messages in total)\n")


def test_compact_is_refused_for_a_replica_that_lags(bucket, seeds, orders):
    """An aggregate is stuck at a value that is larger than it takes."""
    seeds.put("orders", "large", b"x" * 100)
    seeds.create_bucket("stuck", subjects=[], sources=[{"name": "KV_orders"}], duplicate_window=0, max_msg_size=50)
    until(lambda: seeds.api("STREAM.INFO.KV_stuck")["sources"][0]["lag"])
    refused = bucket("compact", "orders")
    assert (refused.exit_code, "--force lagging-replica" in refused.err) == (1, True)
    assert "aggregate `stuck` has a lag of" in refused.err
    assert bucket("compact", "orders", "--force", "lagging-replica").exit_code == 0


@pytest.mark.guarantee("reading-22", by="fault")
def test_data_of_a_replica_that_lacks_entries_is_not_copied(bucket, run, own_server, seeds, orders, tmp_path):
    renamed = {"src": "$KV.orders.>", "dest": "$KV.stuck.>"}
    source = {"name": "KV_orders", "subject_transforms": [renamed]}
    seeds.create_bucket("stuck", subjects=[], sources=[source], duplicate_window=0, max_msg_size=300)
    until(lambda: seeds.api("STREAM.INFO.KV_stuck")["state"]["messages"])
    seeds.put("orders", "large", b"x" * 500)
    commands = [
        ("bucket", "copy", "stuck", "new", "--data", "latest"),
        ("bucket", "backup", "stuck", str(tmp_path / "backup")),
        ("dump", "stuck"),
        ("repo", "init", "first", "--from", "stuck"),
        ("repo", "commit", "second@main", "-m", "x", "--from", "stuck"),
    ]
    on_spark = [
        ("pipeline", "export", "stuck", "--to", str(tmp_path / "export")),
        ("pipeline", "capture", "stuck", "--once", "--to", str(tmp_path / "capture")),
    ]
    env = {"NATS_URL": own_server.url}
    with ThreadPoolExecutor() as pool:
        assert run("repo", "init", "second", env=env).exit_code == 0
        for refused in pool.map(lambda line: run(*line, env=env), commands + on_spark):
            assert (refused.exit_code, refused.out) == (1, "")
            assert (
                "error: A copy of `stuck` would lack entries:\n  `stuck` has not received all entries of" in refused.err
            )
        assert run("dump", "orders", env=env).exit_code == 0
        planned = run(*on_spark[0], "--dry-run", env=env)
        assert (planned.exit_code, ": needs `--force lagging-replica`" in planned.err) == (0, True)
        assert run("repo", "show", "first", env=env).exit_code == 3
        for forced in pool.map(lambda line: run(*line, "--force", "lagging-replica", env=env), commands):
            assert (forced.exit_code, forced.err) == (0, "")
    seeds.api("STREAM.DELETE.KV_orders")
    warned = bucket("copy", "stuck", "other", "--data", "history")
    text = "`stuck` may lack entries of its origin `orders`, which could not be read"
    assert (warned.exit_code, warned.err) == (0, f"warning: {text}\n")


# -- backup, restore ---------------------------------------------------------------------------------------


def test_backup_and_restore(bucket, seeds, orders, tmp_path, snapshot):
    directory = str(tmp_path / "backup-of-a-name-that-no-line-has-room-for")
    before = seeds.api("STREAM.INFO.KV_orders")
    assert bucket("backup", "orders", directory, tty=True) == snapshot
    assert bucket("backup", "orders", directory) == snapshot
    assert bucket("restore", directory) == snapshot
    bucket("delete", "orders", "--yes")
    hashes = {r"[0-9a-f]{64}": "HASH", r'"server": "[\d.]+"': '"server": "N"', r'"bytes": \d+': '"bytes": N'}
    versions = {r"nats-server [\d.]+": "nats-server N", r"\b\d+ B\b": "N B"}
    assert bucket("restore", directory, "--dry-run", "-o", "table").masked(versions) == snapshot
    assert bucket("restore", directory, "--dry-run", "-o", "json").masked(hashes) == snapshot
    assert bucket("ls").out == ""
    assert bucket("restore", directory, tty=True) == snapshot
    after = seeds.api("STREAM.INFO.KV_orders")
    assert after["config"] == before["config"]
    assert (after["state"]["messages"], after["state"]["last_seq"]) == (6, 6)


def test_backup_and_restore_report_in_a_pipe_unless_quiet(bucket, orders, tmp_path):
    directory = str(tmp_path / "backup")
    made = bucket("backup", "orders", directory)
    said = f"Backed up `orders`: 6 entries in `{directory}`\n"
    assert (made.exit_code, made.out, made.err) == (0, said, "")
    bucket("delete", "orders", "--yes")
    done = bucket("restore", directory, "-q")
    assert (done.exit_code, done.out, done.err) == (0, "", "")


def test_a_damaged_backup_is_refused(bucket, orders, tmp_path, snapshot):
    directory = tmp_path / "backup"
    bucket("backup", "orders", str(directory))
    bucket("delete", "orders", "--yes")
    data = directory / "stream.tar.s2"
    data.write_bytes(data.read_bytes()[:-1])
    assert bucket("restore", str(directory)).masked({r"\d+ bytes instead of \d+": "N bytes instead of N"}) == snapshot
    assert bucket("restore", str(tmp_path)) == snapshot
    assert bucket("ls").out == ""


def test_restoring_an_origin_finds_mirrors_that_hold_something_else(bucket, seeds, orders, tmp_path):
    directory = str(tmp_path / "backup")
    bucket("backup", "orders", directory)
    mirror(seeds, "copy")
    bucket("delete", "orders", "--confirm", "orders")
    assert bucket("restore", directory).err == ""  # the mirror holds the same
    seeds.put("orders", "since.then", b"v")
    mirror(seeds, "later")
    bucket("delete", "orders", "--confirm", "orders")
    assert "Mirror `later` still holds data of the previous bucket" in bucket("restore", directory).err


def test_mirrors_of_what_was_there_before_are_named_with_the_command_that_recreates_them(bucket, seeds, orders):
    mirror(seeds, "copy")
    bucket("delete", "orders", "--confirm", "orders")
    made = bucket("add", "orders", tty=True)
    assert (made.exit_code, "Mirror `copy` still holds data of the previous bucket" in made.err) == (0, True)
    assert "`kvctl topology audit copy --repair`" in made.err.replace("\n", " ").replace("         ", " ")
    assert seeds.api("STREAM.INFO.copy")["state"]["messages"] > 0


# -- without a server --------------------------------------------------------------------------------------


def test_a_server_without_jetstream_is_five(run):
    with run_server(config='listen: "127.0.0.1:@client@"') as server:
        for args in (("ls",), ("add", "b"), ("show", "b")):
            result = run("bucket", *args, env={"NATS_URL": server.url})
            assert result.exit_code == 5
            assert "JetStream" in result.err


def test_republish_cycle_is_refused_and_republishing_into_a_bucket_is_a_warning(bucket):
    one = bucket("add", "one", "--republish", "$KV.one.>=$KV.two.>")
    assert (one.exit_code, one.err) == (0, "")
    back = ("--republish", "$KV.two.>=$KV.one.>")
    refused = bucket("add", "two", *back)
    assert refused.exit_code == 1
    assert "`two` <- `one` <- `two`: every write would circulate endlessly" in refused.err
    assert bucket("add", "two").exit_code == 0
    edited = bucket("edit", "two", *back)
    assert (edited.exit_code, "--force cycle" in edited.err) == (1, True)
    warned = bucket("add", "three", "--republish", "$KV.three.>=$KV.two.three.>")
    assert (warned.exit_code, "`three` republishes into `two` (`$KV.two.three.>`)" in warned.err) == (0, True)
    assert bucket("edit", "two", *back, "--force", "cycle").exit_code == 0


def test_recreated_bucket_names_aggregates_that_hold_keys_of_the_previous_one(run, bucket, seeds, own_server):
    seeds.create_bucket("orders", {"k": b"v"})
    settings = {"env": {"NATS_URL": own_server.url}}
    assert run("aggregate", "create", "ALL", "--origin", "orders", **settings).exit_code == 0
    seeds.api("STREAM.DELETE.KV_orders")
    again = bucket("add", "orders")
    assert (again.exit_code, "Aggregate `ALL` may still hold keys of the previous bucket" in again.err) == (0, True)


@pytest.mark.parametrize("how", [("--max-bytes", "none"), ("--clear", "max-bytes")])
def test_limit_is_removed(bucket, seeds, how):
    assert bucket("add", "orders", "--max-bytes", "1MB").exit_code == 0
    assert bucket("edit", "orders", *how).exit_code == 0
    assert seeds.api("STREAM.INFO.KV_orders")["config"]["max_bytes"] == -1
    assert bucket("add", "orders", "--max-bytes", "none").exit_code == 0
    assert bucket("edit", "orders", "--max-bytes", "0").exit_code == 2
