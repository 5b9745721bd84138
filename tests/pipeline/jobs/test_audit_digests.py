"""Digests of both sides decide which keys of an audit are joined, and read again."""

import asyncio
from zlib import crc32

from kvctl.pipeline.jobs import audit as job
from kvctl.pipeline.jobs.audit_digests import SLOTS, slot_of
from kvctl.pipeline.options import parse
from kvctl.topology.audit.verdict import AuditOutcome
from tests.topology.audited import audited


async def test_only_keys_of_differing_slots_are_joined(client, raw, engine, server, unique, monkeypatch):
    origin, mirror, slots = unique("ORIGIN"), unique("M"), list[int]()
    raw.create_bucket(origin, {f"k.{number}": b"%d" % number for number in range(100)})
    await client.bucket(origin).delete("k.0")
    raw.create_stream(mirror, mirror={"name": f"KV_{origin}"}, storage="memory")
    await audited(client, mirror)
    join = job.put_side_by_side

    def joined(*sides: object, **settings: bool) -> object:
        slots.extend(sides[3].slots)  # type: ignore[attr-defined]
        return join(*sides, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(job, "put_side_by_side", joined)

    async def on_spark() -> AuditOutcome:
        options = parse({"bucket": origin, "url": server.url})
        return (await asyncio.to_thread(job.audit, engine, options, [mirror]))[0]

    assert (await on_spark()).consistent
    assert slots == []
    assert raw.api(f"STREAM.MSG.DELETE.{mirror}", {"seq": 8})["success"]
    assert dict((await on_spark()).counts) == {"missing": 1}
    assert slots == [slot_of(f"$KV.{origin}.k.7".encode())]


def test_slots_of_subjects_are_those_that_spark_computes():
    assert slot_of(b"$KV.B.k") == crc32(b"$KV.B.k") % SLOTS
    assert slot_of("$KV.B.é".encode()) == crc32("$KV.B.é".encode()) % SLOTS
    assert slot_of(b"$KV.B.\xff") == crc32(rb"$KV.B.\xff") % SLOTS
