"""Digests of both sides decide which keys of an audit are read again, and joined."""

import asyncio

from kvctl.pipeline.jobs import audit as job
from kvctl.pipeline.jobs import audit_digests
from kvctl.pipeline.jobs.audit_digests import slot_of
from kvctl.pipeline.options import parse
from kvctl.topology.audit.verdict import AuditOutcome
from tests.topology.audited import audited


async def test_only_keys_of_differing_slots_are_read_again(client, raw, engine, server, unique, monkeypatch):
    origin, mirror, slots = unique("ORIGIN"), unique("M"), list[int]()
    raw.create_bucket(origin, {f"k.{number}": b"%d" % number for number in range(100)})
    await client.bucket(origin).delete("k.0")
    raw.create_stream(mirror, mirror={"name": f"KV_{origin}"}, storage="memory")
    await audited(client, mirror)
    differing = audit_digests.differing

    async def second_pass(engine: object, sides: object, chosen: list[int]) -> object:
        slots.extend(chosen)
        return await differing(engine, sides, chosen)  # type: ignore[arg-type]

    monkeypatch.setattr(audit_digests, "differing", second_pass)

    async def on_spark() -> AuditOutcome:
        options = parse({"bucket": origin, "url": server.url})
        return (await asyncio.to_thread(job.audit, engine, options, [mirror]))[0]

    assert (await on_spark()).consistent
    assert slots == []
    assert raw.api(f"STREAM.MSG.DELETE.{mirror}", {"seq": 8})["success"]
    assert dict((await on_spark()).counts) == {"missing": 1}
    assert slots == [slot_of(f"$KV.{origin}.k.7".encode())]
