"""Findings on tables."""

import pytest

import kvctl
from kvctl.doctor import tables
from kvctl.doctor.finding import ERROR, WARNING, Finding
from kvctl.tables import catalog
from kvctl.tables.config import TableConfig, partition_stream, stream_name
from tests.tables.test_catalog import Killed, killed_after


async def of(client: kvctl.Client, name: str) -> list[Finding]:
    listed, _ = await kvctl_streams(client)
    return [item for item in tables.examine(listed) if item.subject == name]


async def kvctl_streams(client: kvctl.Client) -> tuple[dict[str, dict[str, object]], list[str]]:
    from kvctl.jetstream import streams

    found = await streams.listing(client.api)
    return {info["config"]["name"]: info for info in found.answering}, [*found.silent]


async def test_healthy_table_has_no_finding(client, unique):
    for apart in (False, True):
        name = unique("T")
        await catalog.create(client.api, TableConfig(name, partitions=3, apart=apart))
        assert await of(client, name) == []


async def test_interrupted_creation_and_deletion_are_findings(client, unique, monkeypatch):
    config = TableConfig(unique("T"), partitions=3, apart=True)
    with monkeypatch.context() as patch:
        killed_after(client, patch, 2)
        with pytest.raises(Killed):
            await catalog.create(client.api, config)
    (finding,) = await of(client, config.name)
    assert (finding.severity, finding.check) == (WARNING, "unfinished")
    assert f"`kvctl table create {config.name}`" in finding.remedy
    await catalog.create(client.api, config)
    with monkeypatch.context() as patch:
        killed_after(client, patch, 2)
        with pytest.raises(Killed):
            await catalog.delete(client.api, config.name)
    (finding,) = await of(client, config.name)
    assert f"`kvctl table delete {config.name}`" in finding.remedy
    await catalog.delete(client.api, config.name)
    assert await of(client, config.name) == []


async def test_deleted_partition_streams_are_findings(client, unique, raw):
    name = unique("T")
    await catalog.create(client.api, TableConfig(name, partitions=3, apart=True))
    raw.api(f"STREAM.DELETE.{partition_stream(name, 1)}")
    (finding,) = await of(client, name)
    assert (finding.severity, finding.check) == (ERROR, "table-damaged")
    assert partition_stream(name, 1) in finding.evidence
    raw.api(f"STREAM.DELETE.{stream_name(name)}")
    (finding,) = await of(client, name)
    assert (finding.severity, finding.check) == (WARNING, "table-leftovers")


async def test_settings_that_break_a_table_are_findings(client, unique, raw):
    name = unique("T")
    made, _ = await catalog.create(client.api, TableConfig(name))
    raw.api(
        f"STREAM.UPDATE.{stream_name(name)}", {**made.info["config"], "allow_atomic": False, "max_msgs_per_subject": 5}
    )
    findings = await of(client, name)
    assert {finding.check for finding in findings} == {"table-changed"}
    assert [finding.evidence.split(":")[0] for finding in findings] == [
        "`max_msgs_per_subject` is 5",
        "`allow_atomic` is off",
    ]
