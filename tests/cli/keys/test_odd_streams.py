"""Keys of streams that other tools configured: what is reported as stored is stored, and an error has its reason."""

import pytest

from tests.kv.test_oddity import CASES, create

RETENTION, TRANSFORM = "--set retention=limits", "--set subject_transform=null"
REFUSED = "nothing was written"
CONSUMER = dict.fromkeys(("keys", "watch", "dump"), (1, "(10153)", "consumer_limits=null"))
QUEUE = dict.fromkeys(("keys", "watch", "dump"), (1, "(10084)", "work queue"))
NO_BATCH = {"txn z": (1, "does not allow atomic batches", "--atomic")}
ABSENT = {"get a.k": (3, "not in bucket", ""), "delete a.k": (3, "not in bucket", ""), "purge a.k": (3, "not in", "")}


def _no_keys(reason, hint):
    """Writes to a stream that keeps no keys: the first is sent, others are refused before."""
    sent = dict.fromkeys(("put a.k", "update a.k", "create a.c", "put z.k"), (1, f"does not keep keys: {reason}", hint))
    return sent | dict.fromkeys(("load", "load z", "txn z"), (1, REFUSED, hint))


ERRORS = {
    "interest-retention": _no_keys("Retention is `interest`", RETENTION) | ABSENT,
    "workqueue-retention": _no_keys("Retention is `workqueue`", "another bucket")
    | QUEUE
    | dict.fromkeys(("delete a.k", "purge a.k"), (1, "does not keep keys", "another bucket")),
    "renamed-keys": _no_keys("Stream `KV_{}` stores `>` as `x.>`", TRANSFORM) | ABSENT,
    "no-ack": dict.fromkeys(("load", "load z", "txn z"), (1, REFUSED, "--set no_ack=false")),
    "counters": dict.fromkeys(
        ("put a.k", "update a.k", "create a.c", "put z.k", "load", "load z"), (1, "(10169)", "counters")
    )
    | NO_BATCH
    | ABSENT,
    "async-persist": NO_BATCH,
    "written-once": {
        "update a.k": (1, "(10077)", "discard_new_per_subject=false"),
        "load z": (7, "(10077)", "discard_new_per_subject=false"),
        "txn z": (1, "(10077)", "discard_new_per_subject=false"),
        "delete a.k": (1, "(10077)", "discard_new_per_subject=false"),
    },
    "no-rollup": {"purge a.k": (1, "(10111)", "allow_rollup_hdrs=true")},
    "deny-purge": {"purge a.k": (1, "(10111)", "denies them permanently")},
    "consumer-limits": CONSUMER,
    "small-values": {
        "create a.c": (1, "(10054)", "--max-value-size"),
        "delete a.k": (1, "(10054)", "--max-value-size"),
        "purge a.k": (1, "(10054)", "--max-value-size"),
        "txn z": (2, "takes 78 bytes", "--max-value-size"),
    },
    "subjects": {
        "put z.k": (2, "does not listen on `$KV.{}.z.k`", "kvctl stream show KV_{}"),
        "load z": (7, "does not listen on `$KV.{}.z.k`", "load them again"),
        "txn z": (2, "does not listen on `$KV.{}.z.k`", "kvctl stream show KV_{}"),
    },
}
"""Case -> commands that fail, each with its exit code, and words of the message and of the hint; others succeed."""
COMMANDS = {
    "put a.k": ["put", "{}", "a.k", "v1"],
    "update a.k": ["put", "{}", "a.k", "v2"],
    "create a.c": ["create", "{}", "a.c", "c"],
    "put z.k": ["put", "{}", "z.k", "z"],
    "load": ["load", "{}", "-"],
    "load z": ["load", "{}", "-"],
    "txn z": ["txn", "{}", "-f", "-"],
    "keys": ["keys", "{}"],
    "watch": ["watch", "{}", "--until-current"],
    "dump": ["dump", "{}"],
    "get a.k": ["get", "{}", "a.k"],
    "delete a.k": ["delete", "{}", "a.k"],
    "purge a.k": ["purge", "{}", "a.k", "--yes"],
}
INPUT = {
    "load": b'{"key": "a.l", "value": "1"}\n',
    "load z": b'{"key": "a.m", "value": "1"}\n{"key": "z.k", "value": "1"}\n',
    "txn z": b"{then: [{put: a.t, value: x}, {put: z.k, value: y}]}",
}
WRITTEN = {
    "put a.k": "a.k",
    "update a.k": "a.k",
    "create a.c": "a.c",
    "put z.k": "z.k",
    "load": "a.l",
    "delete a.k": "a.k",
}
"""Command -> the key that it writes."""


@pytest.mark.guarantee("writing-19")
@pytest.mark.parametrize("case", CASES)
def test_writes_to_a_stream_of_another_tool_are_stored_or_fail(raw, run, unique, server, case):
    name = unique()
    create(raw, name, {"allow_atomic": case not in ("async-persist", "counters"), **CASES[case]})
    for command, args in COMMANDS.items():
        code, message, hint = ERRORS.get(case, {}).get(command, (0, "", ""))
        before = raw.api(f"STREAM.INFO.KV_{name}")["state"]["last_seq"]
        result = run(*[arg.format(name) for arg in args], "-s", server.url, stdin=INPUT.get(command, b""), timeout=3)
        assert result.exit_code == code, result.transcript()
        assert message.format(name) in result.err, result.transcript()
        assert hint.format(name) in result.err, result.transcript()
        if code == 0 and (key := WRITTEN.get(command)):
            answer = raw.api(f"STREAM.MSG.GET.KV_{name}", {"last_by_subj": f"$KV.{name}.{key}"})
            assert answer["message"]["seq"] > before, result.transcript()


@pytest.mark.guarantee("writing-19")
def test_write_that_another_stream_takes_is_an_error(raw, run, unique, server):
    name, other = unique(), unique()
    raw.create_bucket(name, subjects=[f"$KV.{name}.a.>"])
    raw.create_stream(other, subjects=[f"$KV.{name}.z.>", f"$KV.{other}.>"])
    taken = run("put", name, "z.k", "v", "-s", server.url)
    assert (taken.exit_code, taken.stdout) == (1, b"")
    assert f"Stream `{other}` stored the write to `z.k`, not the bucket `{name}`" in taken.err
    assert run("put", other, "k", "v", "-s", server.url).exit_code == 1  # a bucket of this name does not exist
    assert run("create", other, "k", "v", "-s", server.url).exit_code == 3


def test_dump_of_a_stream_with_other_messages_is_exact(raw, run, unique, server):
    name = unique()
    raw.create_bucket(name, {"k": b"v"}, subjects=[f"$KV.{name}.>", f"orders.{name}"])
    raw.request(f"orders.{name}", b"x")
    result = run("dump", name, "-s", server.url)
    assert result.exit_code == 0, result.transcript()
    assert '"exact": true' in result.out.splitlines()[0]


@pytest.mark.guarantee("writing-19")
def test_writes_without_acknowledgements_do_not_wait_for_them(raw, run, unique, server):
    name = unique()
    raw.create_bucket(name, no_ack=True)
    result = run("put", name, "k", "v", "--timeout", "1m", "-s", server.url, timeout=30)
    assert (result.exit_code, result.stdout) == (0, b"1\n"), result.transcript()


def test_deletion_in_a_full_bucket_names_what_needs_no_space(run, server, raw, unique):
    name = unique()
    raw.create_bucket(name, max_bytes=1000)
    env = {"NATS_URL": server.url}
    while run("put", name, f"k.{raw.api(f'STREAM.INFO.KV_{name}')['state']['messages']}", "x", env=env).exit_code == 0:
        pass
    refused = run("delete", name, "k.1", env=env)
    assert (refused.exit_code, "maximum bytes exceeded" in refused.err) == (1, True)
    assert f"kvctl stream purge KV_{name} --subject FILTER" in refused.err
    for key in ("k.0", "k.2"):  # a marker may take more than one of them left, as their names differ in length
        assert run("stream", "purge", f"KV_{name}", "--subject", f"$KV.{name}.{key}", "--yes", env=env).exit_code == 0
    assert run("delete", name, "k.1", env=env).exit_code == 0


def test_plain_stream_is_not_suggested_as_a_bucket(run, server, raw, unique):
    name = unique()
    raw.create_stream(name=f"{name}x", subjects=[f"$KV.{name}.>"])
    env = {"NATS_URL": server.url}
    written, read = run("put", name, "a", "x", env=env), run("get", name, "a", env=env)
    assert written.exit_code == 1
    assert f"hint: See its subjects with `kvctl stream show {name}x`\n" in written.err
    assert (read.exit_code, f"mean `{name}x`" in read.err) == (3, False)
    raw.create_bucket(f"{name}y")
    raw.create_stream(name=f"{name}z", mirror={"name": f"KV_{name}y"}, max_msgs_per_subject=1, allow_direct=True)
    assert f"mean `{name}z`" in run("get", f"{name}zz", "a", env=env).err


def test_keys_that_a_full_bucket_dropped_have_that_reason(run, server, raw, unique):
    name = unique()
    raw.create_bucket(name, max_msgs=3, discard="old")
    for number in range(5):
        raw.put(name, f"a.{number}", b"x")
    env = {"NATS_URL": server.url}
    reason = "When full, the oldest keys are silently deleted"
    missed, shown = run("get", name, "a.1", env=env), run("bucket", "show", name, env=env)
    assert (missed.exit_code, f"hint: {reason}" in missed.err) == (3, True)
    assert (shown.exit_code, f"warning: {reason}" in shown.err) == (0, True)


def test_write_to_a_key_outside_the_prefix_of_an_aggregate_names_the_command_that_shows_it(run, server, raw, unique):
    name = unique()
    raw.create_bucket(name)
    env = {"NATS_URL": server.url}
    origin = ("--origin", f"bucket={name},prefix=o")
    assert run("aggregate", "create", f"{name}_A", *origin, env=env).exit_code == 0
    refused = run("put", f"{name}_A", "x", "y", env=env)
    assert refused.exit_code == 1
    assert (
        f"No origin has a key that lands at `x`; see its prefixes with `kvctl aggregate show {name}_A`" in refused.err
    )


def test_domain_that_does_not_answer_is_a_connection_to_check(run, server):
    asked = run("bucket", "ls", "--domain", "nowhere", env={"NATS_URL": server.url})
    assert (asked.exit_code, "leaf node connection" in asked.err, "Enable JetStream" in asked.err) == (5, True, False)
