"""Findings on connections and accounts."""

import pytest

import kvctl
from kvctl.doctor import account, examination
from kvctl.doctor.server import clear, examine, version
from kvctl.server import Server, run_server

LIMITED = """
listen: 127.0.0.1:@client@
jetstream { store_dir: "@store@" }
accounts {
  SYS: { users: [ { user: sys, password: sys } ] }
  APP: {
    jetstream: { max_streams: 2, max_store: 100MB, max_mem: 1MB }
    users: [
      { user: app, password: app }
      { user: blind, password: blind, permissions: { publish: { deny: "$JS.API.STREAM.LIST" } } }
      { user: reader, password: reader, permissions: { publish: { deny: ["$JS.API.STREAM.CREATE.>", "$KV.>"] } } }
    ]
  }
}
system_account: SYS
"""


@pytest.mark.parametrize(
    ("number", "severity", "words"),
    [((2, 9, 25), "warning", "aggregates"), ((2, 10, 29), "warning", "per-key TTLs"), ((2, 11, 4), "note", "batches")],
)
def test_old_server_version_is_a_finding(number, severity, words):
    (finding,) = version(number)
    assert (str(finding.severity), words in finding.evidence) == (severity, True)
    assert list(version((2, 12, 0))) == []


def test_unencrypted_password_is_a_warning():
    assert [str(finding.severity) for finding in clear("nats://example.com:4222", secret=True)] == ["warning"]
    assert [str(finding.severity) for finding in clear("nats://10.0.0.7:4222", secret=False)] == ["note"]
    for here in ("nats://127.0.0.1:4222", "nats://localhost", "nats://[::1]:4222"):
        assert list(clear(here, secret=True)) == []


async def test_development_server_has_only_the_note_on_syncing(client):
    (finding,) = await examine(client.connection)
    assert (str(finding.severity), finding.check) == ("note", "fsync")
    assert "not readable from this account" in finding.evidence


@pytest.mark.parametrize(("setting", "checks"), [("", ["fsync"]), (", sync_interval: always", [])])
async def test_system_account_reads_the_sync_setting(setting, checks):
    config = LIMITED.replace('"@store@"', '"@store@"' + setting)
    with run_server(name="syncing", config=config) as server:
        async with kvctl.connect(kvctl.Context(url=server.url, user="sys", password="sys")) as system:
            found = await examine(system.connection)
            assert [finding.check for finding in found] == checks
            assert all("not readable" not in finding.evidence for finding in found)


async def test_nearly_reached_limits_and_missing_permissions_are_findings(unique):
    with run_server(name="limited", config=LIMITED) as server:
        async with kvctl.connect(_user(server, "app")) as client:
            await client.create_bucket("A")
            assert await account.examine(client.api) == []
            await client.create_bucket("B", max_bytes=85_000_000)
            found = await account.examine(client.api)
            assert [(str(finding.severity), finding.check) for finding in found] == [
                ("warning", "account-limit"),
                ("error", "account-limit"),
            ]
            assert "of the account's streams limit is used: 2 of 2" in found[1].evidence
        async with kvctl.connect(_user(server, "reader")) as reader:
            found = [finding for finding in await account.examine(reader.api) if finding.check == "permissions"]
            assert [finding.evidence for finding in found] == ["Not allowed to write a key, create buckets"]
            assert "`$JS.API.STREAM.CREATE.KV_BUCKET`" in found[0].remedy


async def test_missing_permission_to_list_streams_is_a_warning():
    with run_server(name="limited", config=LIMITED) as server:
        async with kvctl.connect(_user(server, "blind")) as client:
            found = [finding for finding in await examination.examine(client.api) if finding.check != "fsync"]
    assert [(str(finding.severity), finding.check) for finding in found] == [
        ("warning", "unseen"),
        ("note", "permissions"),
    ]


def _user(server: Server, name: str) -> kvctl.Context:
    return kvctl.Context(url=server.url, user=name, password=name)
