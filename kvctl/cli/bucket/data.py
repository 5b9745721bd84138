"""Commands of `kvctl bucket` on data: copy, diff, compact, backup, restore."""

from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import kvctl
from kvctl import contexts
from kvctl.cli.app.command import command
from kvctl.cli.app.options import BucketName, DryRun, Force, argument, context_names, duration, flag, one_of, option
from kvctl.cli.app.session import Session
from kvctl.cli.bucket.options import Given, Placement, setting_options
from kvctl.cli.facts import row_of
from kvctl.cli.flows import require_current, show_config, show_result, warn_of_hazards
from kvctl.cli.records import ANY, BUCKET_COPY, COMPACTION, DELETED_KEY, KEY_DIFFERENCE, MANIFEST, RESTORED
from kvctl.errors import KvctlError, UsageError
from kvctl.jetstream import api as jetstream_api
from kvctl.jetstream import streams
from kvctl.kv import config, names
from kvctl.kv.maintenance import bucket_backup, compaction, copy_bucket
from kvctl.phrases import counted
from kvctl.render.fields import columns
from kvctl.render.view import Column, View, document
from kvctl.topology.apply import edit
from kvctl.topology.audit import audit as replica_audit
from kvctl.topology.hazards import hazards
from kvctl.topology.health import arrival, inspection, overview
from kvctl.topology.survey import graph, inventory
from kvctl.units import format_time

CHANGES_PENDING = 8
_IN_OTHER = Column("other_revision", "In other", right=True)


Data = Annotated[
    str | None,
    option("--data", "WHAT", "Copy the data as well: `latest` values or all `history`", one_of("latest", "history")),
]
ToContext = Annotated[str | None, option("--to-context", "NAME", "Context of the second bucket", context_names)]
Directory = Annotated[Path, argument("DIR", "Directory of the backup")]
Replicas = Annotated[Given, setting_options("bucket", only=("replicas",))]


@command(
    "bucket copy",
    examples=[
        "kvctl bucket copy orders orders-test",
        "kvctl bucket copy orders orders-old --data history",
        "kvctl bucket copy orders orders --data latest --to-context staging --replicas 1",
    ],
    see=["bucket diff", "bucket backup"],
    prints=(BUCKET_COPY, ANY),
    forces=lambda: (hazards.LAGGING_REPLICA, hazards.SHADOWED_ORIGIN),
)
async def copy(
    session: Session,
    bucket: BucketName,
    target: Annotated[str, argument("NEWNAME", "Name of the copy")],
    data: Data = None,
    to_context: ToContext = None,
    *,
    placement: Placement,
    dry_run: DryRun = False,
    force: Force = None,
) -> None:
    """Copy a bucket's configuration, and its data with --data.

    The copy is always an ordinary bucket, even if the source is a mirror or an aggregate. Data of one that lacks
    entries of its origins after five seconds is not copied without --force lagging-replica. --data copies the latest
    values, or every entry with its operation, in order. The copy has its own revisions and times. Keys with a ttl keep
    their remaining time; the bucket's ttl starts again.

    A key that is written during the copy is copied with a value from before or after. `kvctl dump` with `kvctl load`
    copies one revision.

    An interrupted copy is removed. An existing target must have the same configuration, and be empty with --data.
    """
    if data not in (None, copy_bucket.LATEST, copy_bucket.HISTORY):
        raise UsageError(f"`{data}` is not a value of `--data`", hint="Use `latest` or `history`")
    names.check_bucket(bucket), names.check_bucket(target)
    client = await session.client()
    there = await _client_of(session, to_context)
    source, changes = client.bucket(bucket), config.edited({}, placement)
    binding = await source.locate()
    if data:
        await require_current(session, binding.api, binding.info, force, dry_run=dry_run)
    needed, _ = await overview.namesakes(there.api, {"name": f"{names.STREAM_PREFIX}{target}"})
    if dry_run:
        assert binding.info is not None
        wanted = copy_bucket.copied_config(binding.info["config"], target, changes)
        remarks = [f"copies {counted(await _entries_of(source, data) or 0, 'entry')} of `{bucket}`"] if data else []
        show_config(session, f"bucket `{target}`", wanted, needed, remarks=remarks)
        return
    hazards.refuse(needed, force, f"`{target}` was not created")
    with session.progress(f"Copying {bucket}", await _entries_of(source, data), unit="entries") as progress:
        copied = await copy_bucket.copy(source, there.api, target, data=data, changes=changes, advance=progress.advance)
    row = {"name": target, "stream": f"KV_{target}", "changed": copied.created, "entries": copied.entries}
    entries = f", {counted(copied.entries, 'entry')}" if data else ""
    changed = copied.created or copied.entries
    text = (
        f"Copied `{bucket}` to `{target}`{entries}"
        if changed
        else f"Bucket `{target}` already exists with the configuration of `{bucket}`"
    )
    show_result(session, row, text)


@command(
    "bucket diff",
    examples=[
        "kvctl bucket diff orders orders-old",
        "kvctl bucket diff orders orders --to-context staging --exit-code",
    ],
    see=["bucket copy"],
    prints=(KEY_DIFFERENCE,),
    listing=True,
)
async def diff(
    session: Session,
    bucket: BucketName,
    other: Annotated[str, argument("OTHER", "Bucket to compare with")],
    to_context: ToContext = None,
    exit_code: Annotated[bool, flag("--exit-code", "Exit with 8 if they differ")] = False,
) -> int | None:
    """Compare the keys and values of two buckets.

    `missing` marks keys that exist only in BUCKET, `extra` keys that exist only in OTHER, and `differs` keys with
    different values. Deleted keys count as absent. Revisions and history are not compared. A warning names a replica
    that lacks entries of its origins after five seconds.
    """
    names.check_bucket(bucket), names.check_bucket(other)
    client = await session.client()
    there = await _client_of(session, to_context)
    sides = client.bucket(bucket), there.bucket(other)
    doubts: dict[str, None] = {}
    for binding in [await side.locate() for side in sides]:
        late, unread = await arrival.behind(binding.api, binding.info) if binding.info else ([], [])
        doubts |= dict.fromkeys((*(hazard.evidence for hazard in late), *unread))
    for text in doubts:
        session.warn(text)
    found = await copy_bucket.compare(*sides)
    rows = [row_of(KEY_DIFFERENCE, item, difference=str(item.difference)) for item in found]
    colour = Column("difference", style=lambda what: {"missing": "red", "extra": "green"}.get(what, "yellow"))
    shown = columns("key difference revision other_revision", difference=colour, other_revision=_IN_OTHER)
    session.show(View(columns=shown, rows=rows, name="key", empty="No differences"))
    return CHANGES_PENDING if rows and exit_code else None


@command(
    "bucket compact",
    examples=["kvctl bucket compact orders --dry-run", "kvctl bucket compact orders --older-than 30m"],
    see=["delete", "purge"],
    prints=(COMPACTION, DELETED_KEY),
    forces=lambda: (hazards.LAGGING_REPLICA, hazards.UNREACHABLE_STREAM, hazards.FOREIGN_KIND),
)
async def compact(
    session: Session,
    bucket: BucketName,
    older_than: Annotated[
        timedelta | None, duration("--older-than", "Only keys that were deleted at least this long ago")
    ] = None,
    dry_run: DryRun = False,
    force: Force = None,
) -> None:
    """Remove the markers and history of deleted keys.

    A key that is created again concurrently survives. Mirrors and aggregates are not affected and keep their markers. A
    replica that has not received the deletions yet would keep the keys permanently: this is refused without --force
    lagging-replica. A stream that does not answer may be such a replica, and --force unreachable-stream overrides that.

    Servers up to 2.15 have a bug (nats-server issue 8505): after a crash they may restore an old value of a key whose
    marker was removed, if the history limit had dropped that value. Markers that expire have the same effect. Keep the
    markers where this would do harm.
    """
    client = await session.client()
    source = client.bucket(bucket)
    found, reasons = await edit.plan_compaction(source, client.api, older_than or timedelta())
    for entry in found.kept:
        session.warn(f"`{entry.key}` was kept: as a wildcard it would match other keys")
    if dry_run:
        rows = [
            row_of(DELETED_KEY, entry, created=format_time(entry.created_ns), operation=str(entry.operation))
            for entry in found.entries
        ]
        shown = columns("key revision created operation", operation=Column("operation"))
        session.show(View(columns=shown, rows=rows, name="key", empty="No deleted keys"))
        warn_of_hazards(session, reasons)
        return
    hazards.refuse(reasons, force, f"Compacting `{bucket}` could lose or restore data")
    with session.progress("Removing deleted keys", len(found.entries), unit="keys") as progress:
        messages = await compaction.remove(source, found, progress.advance)
    row = {"name": bucket, "deleted": len(found.entries), "messages": messages, "kept": len(found.kept)}
    text = f"Removed {counted(len(found.entries), 'deleted key')} ({counted(messages, 'message')} in total)"
    if session.output == "tsv":
        session.note(text, always=True)
        session.show(document(row))
    else:
        show_result(session, row, text)


@command(
    "bucket backup",
    examples=["kvctl bucket backup orders ./orders.bak"],
    see=["bucket restore", "bucket copy"],
    prints=(MANIFEST,),
    forces=lambda: (hazards.LAGGING_REPLICA,),
)
async def backup(session: Session, bucket: BucketName, directory: Directory, force: Force = None) -> None:
    """Back up a bucket into a directory.

    The backup is the server's own snapshot: every entry with its revision and time, and the configuration. A manifest
    records counts, the last revision and a hash of every file. DIR must be new or empty, and appears when the backup is
    complete. An aggregate that lacks entries of its origins after five seconds is not backed up without --force
    lagging-replica.

    The files have the format of `nats stream backup`, and `nats stream restore` can read them.
    """
    client = await session.client()
    await require_current(session, client.api, await streams.find(client.api, f"{names.STREAM_PREFIX}{bucket}"), force)
    with session.progress(f"Backing up {bucket}", unit="bytes") as progress:
        made = await bucket_backup.backup(client.api, bucket, directory, progress.advance)
    show_result(
        session, _manifest_row(made), f"Backed up `{bucket}`: {counted(made.messages, 'entry')} in `{directory}`"
    )


@command(
    "bucket restore",
    examples=["kvctl bucket restore ./orders.bak", "kvctl bucket restore ./orders.bak --dry-run"],
    see=["bucket backup"],
    prints=(RESTORED, MANIFEST),
    forces=lambda: (bucket_backup.OTHER_SUBJECTS, hazards.SHADOWED_ORIGIN),
)
async def restore(
    session: Session, directory: Directory, settings: Replicas, dry_run: DryRun = False, force: Force = None
) -> None:
    """Restore a backup under the bucket's own name.

    The files are compared with the manifest first, then the restored bucket, which rejects writes until it has been
    verified. A restore that fails or is interrupted removes the bucket. If kvctl is killed, the bucket remains and
    `bucket ls` lists it as `incomplete`; run the restore again to replace it.

    A restore never overwrites: delete the bucket first. Mirrors of it with other contents are reported.

    Files and manifest must describe the same bucket. A configuration that republishes to buckets or to subjects of the
    system, or that stores keys under other subjects, is refused without --force other-subjects: checksums show damage,
    and not who made the backup.
    """
    expected = bucket_backup.read_manifest(directory)
    saved = bucket_backup.read_stream(directory, expected)
    bucket_backup.refuse_elsewhere(expected, saved, force or ())
    for text in saved.elsewhere:
        session.warn(f"The backup of `{expected.bucket}` {text}")
    if dry_run:
        session.show(_manifest_view(expected))
        return
    api = (await session.client()).api
    await overview.refuse_namesakes(api, {"name": expected.stream}, f"`{expected.bucket}` was not restored", force)
    total = sum(file.bytes for file in expected.files if file.name == bucket_backup.DATA)
    with session.progress(f"Restoring {expected.bucket}", total, unit="bytes") as progress:
        done = await bucket_backup.restore(
            api, directory, replicas=settings.get("replicas"), advance=progress.advance, force=force or ()
        )
    await warn_of_stale(session, api, expected.stream)
    row = {
        "name": expected.bucket,
        "stream": expected.stream,
        "changed": True,
        "entries": done.info["state"]["messages"],
        "last_revision": done.info["state"]["last_seq"],
    }
    again = ", replacing an interrupted restore" if done.replaced else ""
    show_result(session, row, f"Restored `{expected.bucket}`: {counted(expected.messages, 'entry')}{again}")


def _manifest_row(made: "bucket_backup.BackupManifest") -> dict[str, Any]:
    fields = asdict(made)
    return {"name": fields.pop("bucket"), **fields, "files": [*fields["files"]]}


def _manifest_view(expected: "bucket_backup.BackupManifest") -> View:
    row = _manifest_row(expected)
    shown = columns(
        "name messages bytes last_revision created server",
        messages="Entries",
        created="Backed up",
        server=Column("server", "From server", text=lambda version: f"nats-server {version}"),
    )
    return document(row, *shown, tsv=MANIFEST.columns)


async def _entries_of(source: "kvctl.Bucket", data: str | None) -> int | None:
    """Return the number of entries that a copy sends, None without data."""
    binding = await source.locate()
    if data is None or binding.info is None:
        return None
    state = binding.info["state"]
    return int(state["messages"] if data == "history" else state.get("num_subjects") or 0)


async def _client_of(session: Session, name: str | None) -> "kvctl.Client":
    """Return the client of another context, or the session's own."""
    if name is None:
        return await session.client()
    context = contexts.ContextStore().load(name)
    mine = session.context
    return await session.connect(replace(context, timeout=mine.timeout, read_only=context.read_only or mine.read_only))


_PATIENCE = timedelta(seconds=2)
"""Time for replication to catch up before a difference counts."""


async def warn_of_stale(session: Session, api: "jetstream_api.Api", stream: str) -> None:
    """Warn of each mirror whose contents differ from the stream, with the command that recreates it.

    Raises nothing, because the bucket itself was created or restored.
    """
    try:
        for replica in await _stale(session, api, stream):
            session.warn(
                f"Mirror `{replica.name}` still holds data of the previous bucket: recreate it with "
                f"`kvctl topology audit {replica.name} --repair`"
            )
    except KvctlError as error:
        session.warn(f"Could not check the bucket's mirrors: {error.message}")


async def _stale(session: Session, api: "jetstream_api.Api", stream: str) -> "list[graph.Replica]":
    """Return the stream's visible mirrors whose contents differ, by their counts or else by comparing every key."""
    found = []
    for replica in (await inventory.survey({"": api})).replicas():
        (link, *_) = replica.links
        if str(replica.kind) != "mirror" or link.source["name"] != stream or link.origin is None:
            continue
        if replica.silent:
            session.warn(f"Could not check mirror `{replica.name}`: it does not answer")
            continue
        if inspection.lineage(replica.info, link.origin).same is False or await _differs(session, replica):
            found.append(replica)
    return found


async def _differs(session: Session, replica: "graph.Replica") -> bool:
    if not replica.info["state"]["messages"]:
        return False
    with session.progress(f"Auditing {replica.name}", replica_audit.messages_to_read(replica), unit="keys") as progress:
        outcomes = await replica_audit.audit(replica, _PATIENCE, advance=progress.advance)
    return any(outcome.consistent is False for outcome in outcomes)
