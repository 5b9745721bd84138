"""Reads and listings of a cluster that lost servers: what is waited for, and who else has the keys."""

import re
import time

from tests.cli.conftest import Result
from tests.support.raw import RawClient
from tests.support.waiting import until

SOON = ("--timeout", "2s")


def test_commands_name_what_answers_and_what_they_wait_for(own_cluster, run):
    """The mirror's server is away: its origin has the keys. Then two servers are: nobody lists streams."""
    servers = own_cluster.servers
    urls = ",".join(server.url for server in servers.values())
    for args in (
        ("bucket", "add", "ORDERS", "--replicas", "3"),
        ("put", "ORDERS", "a.b", "v"),
        ("mirror", "create", "COPY", "--origin", "ORDERS"),
    ):
        assert run(*args, "-s", urls).exit_code == 0
    with RawClient(servers["n1"].url) as raw:
        home = raw.api("STREAM.INFO.COPY")["cluster"]["leader"]
    servers[home].stop()
    for args in (("get", "COPY", "a.b"), ("get", "COPY", "a.*"), ("keys", "COPY", "a.>"), ("history", "COPY")):
        line = " ".join(["kvctl", args[0], "ORDERS", *args[2:]]).replace("a.*", "'a.*'").replace("a.>", "'a.>'")
        refused = run(*args, "-s", urls, *SOON)
        assert refused.exit_code == 5
        assert f"hint: `ORDERS` has the same keys, and its servers answer: `{line}`" in refused.err
    servers[home].start()
    until(lambda: run("get", "COPY", "a.b", "-s", urls).out == "v", what="the mirror's server to be back")
    left = servers[home].url
    for name, server in servers.items():
        if name != home:
            server.stop()
    ended = until(lambda: _failed(run("bucket", "ls", "-s", left, *SOON)), what="the cluster to have no leader")
    assert "Waiting" not in ended.err
    asked = ("bucket", "alternates", "ORDERS", "-s", left, *SOON)
    line = until(lambda: re.search(r".* COPY .*", run(*asked, tty=True).out), what="the server to answer in that time")
    assert "? unknown" in line[0]
    for _ in range(5):  # a machine may stand still for seconds
        begun = time.monotonic()
        listed = run("bucket", "ls", "-s", left, *SOON, tty=True)
        if soon := time.monotonic() - begun < 8:
            break
    assert (listed.exit_code, soon) == (5, True)
    listed = run("bucket", "ls", "-s", left, "--timeout", "4s", tty=True)
    assert "Waiting for JetStream: JetStream system temporarily unavailable (10008)" in listed.err


def _failed(result: Result) -> Result | None:
    return result if result.exit_code == 5 else None
