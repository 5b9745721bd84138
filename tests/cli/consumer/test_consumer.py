"""`kvctl consumer`: created, changed, paused; messages taken, acknowledged, handed to commands; how it ends."""

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cli.conftest import Result
from tests.support.raw import RawClient
from tests.support.waiting import until


@pytest.fixture
def name(raw, unique):
    """A stream with messages 1 to 3 on NAME.a, NAME.b, NAME.a."""
    name = unique("WORK")
    raw.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.>"]})
    for subject, data, headers in (("a", b"one", None), ("b", b"two", {"Color": "red"}), ("a", b"\xff", None)):
        raw.request(f"{name}.{subject}", data, headers)
    return name


@pytest.fixture
def consumer(run, server, name):
    """Runs `kvctl consumer COMMAND S ...`, S being the test's stream."""

    def command(verb: str, *args: str, **settings: Any) -> Result:
        return run("consumer", verb, name, *args, "-s", server.url, **settings).masked(S=name)

    return command


@pytest.fixture
def worker(consumer):
    """The same, with a durable consumer `c` on the stream."""
    assert consumer("add", "c", "--ack-wait", "20s").exit_code == 0
    return consumer


def rows(result: Result) -> Any:
    assert result.exit_code == 0, result.err
    return json.loads(result.out)


def info(raw: RawClient, name: str, consumer: str = "c") -> dict[str, Any]:
    return raw.api(f"CONSUMER.INFO.{name}.{consumer}")


class TestAdd:
    def test_again_is_no_error_and_otherwise_a_conflict(self, consumer, snapshot):
        assert consumer("add", "c", "--ack-wait", "1m") == snapshot
        assert consumer("add", "c", "--ack-wait", "1m") == snapshot
        assert consumer("add", "c", "--ack-wait", "2m") == snapshot

    def test_every_flag_says_what_the_server_stores(self, consumer, raw, name):
        options = (
            f"--filter {name}.a --filter {name}.b --start-seq 2 --ack-policy all --max-deliver 4 --backoff 1s "
            "--backoff 5s --max-ack-pending 7 --inactive-threshold 1h --description ours --set max_waiting=9 "
            "--set metadata.x=y"
        )
        done = consumer("add", "c", *options.split())
        assert done.exit_code == 0, done.err
        config = info(raw, name)["config"]
        assert config["filter_subjects"] == [f"{name}.a", f"{name}.b"]
        assert (config["deliver_policy"], config["opt_start_seq"]) == ("by_start_sequence", 2)
        assert (config["ack_policy"], config["max_deliver"]) == ("all", 4)
        assert config["ack_wait"] == 10**9  # the first backoff
        assert (config["backoff"], config["max_ack_pending"]) == ([10**9, 5 * 10**9], 7)
        assert (config["inactive_threshold"], config["description"]) == (3600 * 10**9, "ours")
        assert (config["max_waiting"], config["metadata"]["x"], config["durable_name"]) == (9, "y", "c")

    def test_an_ephemeral_one_gets_a_name_that_is_printed(self, consumer, raw, name):
        made = consumer("add", "--deliver", "new").out.strip()
        assert made.startswith("kvctl-")
        assert "durable_name" not in info(raw, name, made)["config"]
        assert consumer("add", "named", "--ephemeral").exit_code == 0
        assert "durable_name" not in info(raw, name, "named")["config"]

    def test_from_a_file(self, consumer, raw, name, tmp_path):
        file = tmp_path / "c.json"
        file.write_text('{"durable_name": "c", "ack_wait": "90s", "ack_policy": "all"}')
        assert consumer("add", "--config", str(file), "--ack-policy", "explicit").exit_code == 0
        config = info(raw, name)["config"]
        assert (config["ack_wait"], config["ack_policy"], config["durable_name"]) == (90 * 10**9, "explicit", "c")

    def test_a_dry_run_creates_nothing(self, consumer, raw, name):
        assert rows(consumer("add", "c", "--dry-run", "-o", "json")) == {
            "ack_policy": "explicit",
            "name": "c",
            "durable_name": "c",
        }
        assert "error" in info(raw, name)


def test_listed_and_shown(worker, snapshot):
    assert worker("ls", "-o", "json") == snapshot
    assert worker("ls", tty=True) == snapshot
    assert worker("show", "c", tty=True) == snapshot
    names = (
        "stream name durable filters deliver_policy ack_policy pending ack_pending redelivered waiting paused created "
        "description delivered ack_floor pause_remaining push_bound cluster config"
    )
    assert set(rows(worker("show", "c", "-o", "json"))) == {*names.split()}
    assert worker("show", "none") == snapshot


@pytest.mark.parametrize("moment", ["2026-01-31T12:00:00Z", "2026-01-31T13:00:00.120+01:00"])
def test_add_from_a_time_with_zeros_at_its_end_creates_the_consumer(consumer, raw, name, moment):
    for _ in range(2):
        assert consumer("add", "c", "--start-time", moment).exit_code == 0
    assert info(raw, name)["config"]["opt_start_time"].startswith("2026-01-31T12:00:00")


def test_add_warns_of_a_start_after_messages_of_its_time(consumer, raw, name):
    """nats-server 2.15 begins a consumer with several filters at the first of those that have no older message."""
    for subject in ("c", "a", "d"):
        raw.request(f"{name}.{subject}", b"")
    moment = raw.api(f"STREAM.MSG.GET.{name}", {"seq": 2})["message"]["time"]
    filters = ["--filter", f"{name}.a", "--filter", f"{name}.c"]
    late = consumer("add", "late", "--start-time", moment, *filters)
    assert late.exit_code == 0
    assert "after message 3, but message 3 is not older" in late.err
    assert "`--start-seq 2`" in late.err
    assert info(raw, name, "late")["num_pending"] == 2
    assert consumer("add", "right", "--start-seq", "2", *filters).err == ""
    assert info(raw, name, "right")["num_pending"] == 3
    assert "not older" not in consumer("add", "one", "--start-time", moment, "--filter", f"{name}.a").err


def test_edit_shows_the_difference(worker, raw, name, snapshot):
    assert worker("edit", "c", "--ack-wait", "1m", "--dry-run") == snapshot
    assert info(raw, name)["config"]["ack_wait"] == 20 * 10**9
    assert worker("edit", "c", "--ack-wait", "1m", "--filter", f"{name}.a", "-o", "json") == snapshot
    config = info(raw, name)["config"]
    assert (config["ack_wait"], config["filter_subject"], config["max_waiting"]) == (60 * 10**9, f"{name}.a", 512)
    assert worker("edit", "c", "--ack-wait", "1m").exit_code == 0
    assert worker("edit", "none", "--ack-wait", "1m").exit_code == 3
    refused = worker("edit", "c", "--ack-policy", "none")
    assert (refused.exit_code, "ack policy can not be updated" in refused.err) == (1, True)


def test_paused_resumed_deleted(worker, raw, name, snapshot):
    assert worker("pause", "c", "--for", "1h", "--dry-run").out.partition("\n")[2].startswith("    paused  until 2")
    assert not info(raw, name).get("paused")
    assert re.fullmatch(r"Paused consumer `c` until 20[^.]{17}Z\n", worker("pause", "c", "--for", "1h").out)
    assert worker("pause", "c", "--for", "1h", "-o", "json") == snapshot
    assert info(raw, name)["paused"]
    assert worker("next", "c", "--wait-for", "1s").exit_code == 9
    assert worker("resume", "c", "-o", "json") == snapshot
    assert not info(raw, name).get("paused")
    assert worker("pause", "c", "--until", "-1h").exit_code == 2
    assert worker("resume", "c", "-o", "name").out == "c\n"
    assert worker("delete", "c", "--dry-run").exit_code == 0
    assert worker("delete", "c", "-o", "json") == snapshot
    assert worker("delete", "c").exit_code == 3


class TestTaking:
    def test_next_is_one_object_and_acknowledged(self, worker, raw, name, snapshot):
        assert worker("next", "c", "-o", "json") == snapshot
        assert info(raw, name)["ack_floor"]["stream_seq"] == 1
        assert worker("next", "c", tty=True) == snapshot
        assert worker("next", "c", "--no-ack", "-o", "json") == snapshot
        assert info(raw, name)["num_ack_pending"] == 1
        assert worker("next", "c", "--wait-for", "1s") == snapshot
        assert worker("next", "c", "--wait-for", "0").err == "error: No message is available\n"

    @pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
    @pytest.mark.parametrize("words", ["next c", "fetch c --max-messages 2", "consume c --count 2"])
    def test_what_could_not_be_printed_is_not_acknowledged(self, worker, raw, name, server, start, words):
        verb, *rest = words.split()
        with open("/dev/full", "wb") as full:
            process = start("consumer", verb, name, *rest, "-s", server.url, stdout=full)
            assert process.wait(60) == 1
        assert b"No space left" in process.stderr.read()
        assert info(raw, name)["ack_floor"]["stream_seq"] == 0

    def test_a_consumer_without_acknowledgements(self, consumer):
        consumer("add", "c", "--ack-policy", "none")
        assert rows(consumer("next", "c", "-o", "json"))["sequence"] == 1
        assert consumer("fetch", "c", "--max-messages", "1", "-o", "name").out == "2\n"
        assert consumer("consume", "c", "--count", "1", "--exec", "true").exit_code == 0

    def test_next_takes_as_many_as_are_counted(self, worker):
        assert [row["sequence"] for row in rows(worker("next", "c", "--count", "2", "-o", "json"))] == [1, 2]

    def test_fetch_is_an_array(self, worker, raw, name, snapshot):
        assert worker("fetch", "c", "--max-messages", "2") == snapshot
        assert info(raw, name)["ack_floor"]["stream_seq"] == 2
        assert len(rows(worker("fetch", "c", "--max-bytes", "10KiB", "--no-wait", "-o", "json"))) == 1
        assert rows(worker("fetch", "c", "--max-messages", "5", "--wait-for", "1s", "-o", "json")) == []
        began = time.monotonic()
        assert rows(worker("fetch", "c", "--max-messages", "5", "--wait-for", "0", "-o", "json")) == []
        assert time.monotonic() - began < 15

    @pytest.mark.parametrize("line", ["next none", "fetch none --max-messages 1", "consume none"])
    def test_an_unknown_consumer_is_not_found(self, worker, line):
        assert worker(*line.split()).exit_code == 3

    def test_a_limit_of_the_consumer_is_a_warning(self, consumer, snapshot):
        consumer("add", "c", "--set", "max_batch=2")
        assert consumer("fetch", "c", "--max-messages", "3") == snapshot
        assert consumer("consume", "c", "--count", "3", "-o", "name") == snapshot

    def test_a_limit_by_size_that_may_skip_messages_is_a_warning(self, consumer, name):
        consumer("add", "c", "--deliver", "last-per-subject", "--filter", f"{name}.>")
        warned = consumer("fetch", "c", "--max-bytes", "1KiB", "--no-wait")
        assert (warned.exit_code, "servers may skip some" in warned.err) == (0, True)
        assert "skip" not in consumer("fetch", "c", "--max-messages", "9", "--no-wait").err


class TestConsume:
    @pytest.mark.guarantee("consumers-3")
    def test_heartbeats_are_asked_for_every_five_seconds(self, worker, raw, name, server):
        with RawClient(server.url) as listener:
            listener._send(b"SUB $JS.API.CONSUMER.MSG.NEXT.%b.c 1\r\n" % name.encode())
            listener.flush()
            assert worker("consume", "c", "--count", "1").exit_code == 0
            assert listener._next().json()["idle_heartbeat"] == 5 * 10**9

    def test_lines_until_count(self, worker, raw, name):
        result = worker("consume", "c", "--count", "3", "-o", "json")  # as ndjson: without an end there is no array
        found = [json.loads(line) for line in result.out.splitlines()]
        counted = [(row["sequence"], row["delivered"], row["pending"]) for row in found]
        assert counted == [(1, 1, 2), (2, 1, 1), (3, 1, 0)]
        assert info(raw, name)["ack_floor"]["stream_seq"] == 3

    def test_without_acknowledging(self, worker, raw, name):
        assert worker("consume", "c", "--count", "3", "--no-ack", "-o", "name").out.split() == ["1", "2", "3"]
        assert info(raw, name)["num_ack_pending"] == 3

    def test_without_a_consumer_everything_in_order(self, consumer, raw, name):
        assert consumer("consume", "--count", "3", "-o", "name").out.split() == ["1", "2", "3"]
        assert consumer("consume", "--count", "2", "--filter", f"{name}.a", "-o", "name").out.split() == ["1", "3"]
        until(lambda: raw.api(f"CONSUMER.NAMES.{name}")["total"] == 0, what="deletion of the consumer")

    @pytest.mark.guarantee("consumers-5", by="kill")
    def test_interrupted_it_finishes_what_came_and_exits_130(self, worker, start, raw, name, server):
        running = start("consumer", "consume", name, "c", "-o", "ndjson", env={"NATS_URL": server.url})
        found = [json.loads(running.stdout.readline())["sequence"] for _ in range(3)]
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=60)
        assert (running.returncode, found, out, err) == (130, [1, 2, 3], b"", b"")
        assert info(raw, name)["ack_floor"]["stream_seq"] == 3
        until(lambda: info(raw, name)["num_waiting"] == 0, what="end of the pull")

    def test_a_consumer_deleted_under_it_is_not_found(self, worker, start, raw, name, server):
        running = start("consumer", "consume", name, "c", "-o", "name", env={"NATS_URL": server.url})
        assert running.stdout.readline() == b"1\n"
        raw.api(f"CONSUMER.DELETE.{name}.c")
        _, err = running.communicate(timeout=60)
        assert (running.returncode, b"was deleted" in err) == (3, True)

    def test_it_goes_on_over_a_restart_and_says_so(self, own_server, start):
        with RawClient(own_server.url) as raw:
            raw.api("STREAM.CREATE.R", {"name": "R", "subjects": ["r.>"]})
            config = {"name": "c", "durable_name": "c", "ack_policy": "explicit"}
            raw.api("CONSUMER.CREATE.R.c", {"stream_name": "R", "config": config})
            raw.request("r.1")
        running = start("consumer", "consume", "R", "c", "-o", "name", env={"NATS_URL": own_server.url})
        assert running.stdout.readline() == b"1\n"
        own_server.restart()
        with RawClient(own_server.url) as raw:
            raw.request("r.2")
        assert running.stdout.readline() == b"2\n"
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=60)
        assert running.returncode == 130
        assert b"warning: The server ended the pull: Server Shutdown (409)" in err
        assert b"warning: The connection to the server was lost" in err

    def test_a_reader_that_goes_ends_it_quietly(self, worker, start, raw, name, server):
        running = start("consumer", "consume", name, "c", "-o", "name", env={"NATS_URL": server.url})
        assert running.stdout.readline() == b"1\n"
        running.stdout.close()
        assert (running.wait(10), running.stderr.read()) == (0, b"")


class TestExec:
    @pytest.mark.guarantee("consumers-7")
    def test_what_succeeds_is_acknowledged(self, worker, raw, name, snapshot):
        facts = "STREAM CONSUMER SUBJECT SEQUENCE CONSUMER_SEQUENCE DELIVERED PENDING SIZE HEADERS"
        show = f"sh -c 'echo {' '.join(f'[$KVCTL_{fact}]' for fact in facts.split())} $(cat | base64)'"
        assert worker("consume", "c", "--count", "3", "--exec", show) == snapshot
        assert info(raw, name)["ack_floor"]["stream_seq"] == 3

    @pytest.mark.guarantee("consumers-7")
    def test_what_fails_is_delivered_again_ever_later(self, worker, raw, name, tmp_path):
        log = tmp_path / "log"
        fails = f"sh -c 'echo $KVCTL_SEQUENCE $KVCTL_DELIVERED $(date +%s.%N) >> {log}; test $KVCTL_SEQUENCE != 2'"
        result = worker("consume", "c", "--count", "5", "--exec", fails)
        assert (result.exit_code, "failed for 3 of 5 messages" in result.err) == (7, True)
        attempts = [line.split() for line in log.read_text().splitlines()]
        assert ["/".join(attempt[:2]) for attempt in attempts] == ["1/1", "2/1", "3/1", "2/2", "2/3"]
        moments = [float(attempt[2]) for attempt in attempts if attempt[0] == "2"]
        assert moments[1] - moments[0] > 0.9
        assert moments[2] - moments[1] > 1.9
        until(lambda: info(raw, name)["num_ack_pending"] == 1, what="return of the other messages")

    @pytest.mark.guarantee("consumers-7")
    def test_a_slow_command_keeps_its_message(self, consumer, raw, name):
        consumer("add", "c", "--ack-wait", "4s")
        assert consumer("consume", "c", "--count", "1", "--exec", "sleep 5").exit_code == 0
        assert (info(raw, name)["num_redelivered"], info(raw, name)["ack_floor"]["stream_seq"]) == (0, 1)

    @pytest.mark.guarantee("consumers-5", by="kill")
    def test_interrupted_the_command_comes_to_its_end(self, worker, start, raw, name, server, tmp_path):
        begun, ended = tmp_path / "begun", tmp_path / "ended"
        slow = f"sh -c 'touch {begun}; sleep 1; touch {ended}'"
        running = start("consumer", "consume", name, "c", "--exec", slow, env={"NATS_URL": server.url})
        until(begun.exists, what="begin of the command")
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 128 + signal.SIGTERM
        assert ended.exists()
        assert info(raw, name)["ack_floor"]["stream_seq"] == 1
        assert info(raw, name)["num_ack_pending"] == 0

    def test_a_second_signal_ends_it_at_once(self, worker, start, name, server, tmp_path):
        pid = tmp_path / "pid"
        hangs = f"sh -c 'echo $$ > {pid}; exec sleep 600'"
        running = start("consumer", "consume", name, "c", "--exec", hangs, env={"NATS_URL": server.url})
        until(lambda: pid.exists() and pid.read_text().endswith("\n"), what="process id of the command")
        for _ in range(100):  # two in quick succession may be one
            running.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            if running.poll() is not None:
                break
        assert running.returncode == 128 + signal.SIGTERM
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid.read_text()), 0)

    def test_next_and_fetch_have_it_too(self, worker, raw, name):
        assert worker("next", "c", "--exec", "sh -c 'echo $KVCTL_SEQUENCE'").out == "1\n"
        assert worker("fetch", "c", "--max-messages", "2", "--exec", "sh -c 'echo $KVCTL_SEQUENCE'").out == "2\n3\n"
        assert info(raw, name)["ack_floor"]["stream_seq"] == 3


def test_names_are_completed(run, worker, name, server):
    def offered(*words: str) -> Iterator[str]:
        result = run("__complete", "--", *words, env={"NATS_URL": server.url})
        return (line.split("\t")[0] for line in result.out.splitlines())

    assert name in offered("stream", "show", name[:4])
    assert name in offered("consumer", "next", name[:4])
    assert list(offered("consumer", "show", name, "")) == ["c"]
