"""Commands of `kvctl bucket` on buckets: add, ls, show, edit, delete."""

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import kvctl
from kvctl import suggest
from kvctl.cli import flows, records
from kvctl.cli.app.command import command, group
from kvctl.cli.app.options import (
    BucketName,
    Confirm,
    DryRun,
    Force,
    NewName,
    Yes,
    argument,
    deletes,
    flag,
    one_of,
    option,
)
from kvctl.cli.app.session import Session
from kvctl.cli.bucket import data, details, views
from kvctl.cli.bucket.options import Given, clear_option, setting_options
from kvctl.cli.live import Interval, Watch, check_interval, check_live, show_live
from kvctl.errors import UsageError
from kvctl.jetstream import api as jetstream_api
from kvctl.jetstream import stream_info, streams
from kvctl.kv import catalog, config, names, stream_kind
from kvctl.phrases import counted, joined
from kvctl.render.view import View
from kvctl.topology.apply import edit as apply_edit
from kvctl.topology.hazards import hazards
from kvctl.topology.health import overview
from kvctl.topology.survey import graph, inventory, origin_lookup
from kvctl.units import format_size

group(
    "bucket",
    """Create, inspect, change and move buckets

    A bucket is a stream that holds keys and values, as described in ADR-8. These commands also list, show and delete
    mirrors and aggregates. `add` is also `create`, as for all other resources.
    """,
)

KINDS = ("bucket", "mirror", "aggregate", "table", "repository", "stream", "incomplete", "unknown")
"""Values of `--kind`, which are those of `kvctl.kv.stream_kind.Kind`."""


def edit_hazards() -> tuple[str, ...]:
    """Return the safety checks of an edit of a bucket or a replica."""
    return (hazards.LOSSY_EDIT, *hazards.OF_EDITS, hazards.CYCLE, hazards.FOREIGN_KIND)


@command(
    "bucket add",
    examples=[
        "kvctl bucket add orders",
        "kvctl bucket add orders --history 5 --ttl 30d --replicas 3",
        "kvctl bucket add locks --marker-ttl 1h --storage memory",
    ],
    see=["bucket edit", "bucket show"],
    prints=(records.BUCKET_CHANGE, records.ANY),
    forces=lambda: (hazards.CYCLE, hazards.SHADOWED_ORIGIN),
)
async def add(
    session: Session,
    name: NewName,
    settings: Annotated[Given, setting_options("bucket")],
    dry_run: DryRun = False,
    force: Force = None,
) -> None:
    """Create a bucket.

    Without options the bucket has the defaults of ADR-8: one revision per key, file storage, one server. If the bucket
    exists with the same configuration, nothing changes. If it exists with another configuration, the command fails and
    shows the differences.

    The stored configuration is read back, because old servers silently drop settings that they do not know. In that
    case the bucket is removed and the error names the settings.

    Revisions of a recreated bucket begin at 1 again, and a compare-and-set with a revision of the earlier bucket could
    succeed by accident. --first-revision with a number above the earlier ones prevents that.

    A mirror of an earlier bucket with this name would answer reads of the new bucket with its old values. Such mirrors
    are reported. A mirror of a bucket with this name in another domain or account would answer them with that bucket's
    keys: this is refused without --force shadowed-origin.
    """
    wanted = kvctl.BucketConfig(name, **settings).to_stream()
    api = (await session.client()).api
    needed, warnings = await overview.namesakes(api, wanted)
    if wanted.get("republish") and await catalog.existing(api, wanted) is None:
        needed += await origin_lookup.cycles(api, wanted, ())
        for text in await origin_lookup.republishing(api, wanted):
            session.warn(text)
    if dry_run:
        if await catalog.existing(api, wanted) is None:
            flows.show_config(session, f"bucket `{name}`", wanted, needed)
            return
        made = None
    else:
        hazards.refuse(needed, force, f"`{name}` was not created")
        made = await _create(session, api, wanted, warnings)
    created = made is not None and made.created
    flows.show_creation(session, f"bucket `{name}`", {"name": name, "stream": wanted["name"]}, created=created)


@command(
    "bucket ls",
    examples=[
        "kvctl bucket ls",
        "kvctl bucket ls 'ORDERS*' --kind mirror,aggregate",
        "kvctl bucket ls --sort size --limit 10",
        "for b in $(kvctl bucket ls -o name); do kvctl dump $b > $b.ndjson; done",
    ],
    see=["bucket show", "mirror ls", "aggregate ls"],
    prints=(records.BUCKET_ROW,),
    listing=True,
)
async def ls(
    session: Session,
    patterns: Annotated[
        list[str] | None, argument("PATTERN", "Names to list: `*` matches any characters [default: all names]")
    ] = None,
    kinds: Annotated[
        list[str] | None,
        option(
            "--kind", "KIND", f"Kinds to list, separated by commas, or repeated: {', '.join(KINDS)}", one_of(*KINDS)
        ),
    ] = None,
    everything: Annotated[bool, flag("--all", "List all kinds, tables and repositories included")] = False,
    watch: Watch = False,
    interval: Interval = None,
) -> None:
    """List buckets, mirrors and aggregates.

    STATE is `offline` if the servers of a stream do not answer; the columns of its contents are then empty. If only its
    name is known, KIND is `unknown`. With --all the list also has tables, repositories, `stream` for a plain stream
    with a bucket's name, and `incomplete` for the remains of an interrupted restore or copy. A mirror with the name of
    a bucket is hidden by that bucket, and only listed with --all or --kind. ENTRIES are all stored entries, including
    history and deletions. --watch reads the list again every two seconds, and redraws it.
    """
    wanted, every = _kinds(kinds, everything), check_interval(watch, interval)
    api = (await session.client()).api

    async def read() -> View:
        view = views.listing_view((await _listed(api, wanted, patterns or ())).rows)
        return view._replace(rows=session.listed(view))

    if watch:
        check_live(session)
        await show_live(session, "bucket ls", read, every)
        return
    found = await _listed(api, wanted, patterns or ())
    session.show(views.listing_view(found.rows))
    if found.hidden:
        session.note(f"Not listed: {found.hidden}. List everything with `--all`")
    if found.offline:
        session.warn(f"Offline streams that may be mirrors: {', '.join(f'`{stream}`' for stream in found.offline)}")


class _BucketList(NamedTuple):
    rows: list[dict[str, Any]]
    hidden: str
    """Other kinds of these names: `2 tables`."""
    offline: list[str]
    """Streams that may be mirrors."""


async def _listed(api: "jetstream_api.Api", wanted: tuple[str, ...] | None, patterns: Collection[str]) -> _BucketList:
    found = await catalog.listing(api)
    clues: dict[str, graph.Clue] = {}
    if found.unreachable:
        clues = await inventory.clues(api, (status.info for status in found.statuses), found.unreachable)
    known = {status.stream for status in found.offline}
    unknown = [stream for stream in found.unreachable if stream not in known]
    named = [stream for stream in unknown if stream.startswith(names.STREAM_PREFIX) or stream in clues]
    rows, hidden = views.listed_rows(found._replace(unreachable=named), clues, wanted, patterns)
    return _BucketList(rows, hidden, [stream for stream in unknown if stream not in named])


def _kinds(given: list[str] | None, everything: bool) -> tuple[str, ...] | None:
    """Return the kinds to list, None for the usual ones. Raises UsageError."""
    if given and everything:
        raise UsageError("`--kind` and `--all` cannot be combined")
    if everything:
        return KINDS
    words = [word for text in given or () for word in text.split(",")]
    for word in words:
        if word not in KINDS:
            hint = suggest.did_you_mean(word, KINDS, f"Use some of {', '.join(KINDS)}")
            raise UsageError(f"`{word}` is not a kind", hint=hint)
    return tuple(words) or None


@command(
    "bucket show",
    examples=["kvctl bucket show orders", "kvctl bucket show orders -o json | jq .config"],
    see=["bucket ls", "doctor"],
    prints=(records.BUCKET,),
    in_pipe="fields",
)
async def show(session: Session, bucket: BucketName) -> None:
    """Show a bucket's state, settings, servers and replicas.

    ENTRIES counts all stored entries, including history and deletions. ALTERNATES are the streams that can answer reads
    of this bucket, as in `kvctl bucket alternates`. SERVED BY names the streams that answered some test reads.
    REPLICATED BY lists the mirrors and aggregates of the bucket in this account and domain; others are not visible.
    STATE is the same as in `kvctl topology status`. ORIGIN is `recreated` if the origin was recreated after the mirror
    was created.

    Warnings report problems in the configuration of a mirror or an aggregate. If the servers that hold the bucket do
    not answer, it is `offline`: the command shows what other servers know, and the rest is null.
    """
    details.show(session, await overview.inspect((await session.client()).api, bucket))


@command(
    "bucket edit",
    examples=[
        "kvctl bucket edit orders --history 10",
        "kvctl bucket edit orders --ttl 90s --dry-run",
        "kvctl bucket edit orders --clear ttl --clear metadata.owner",
    ],
    see=["bucket add", "bucket show"],
    prints=(records.BUCKET_EDIT, records.DIFFERENCE),
    forces=edit_hazards,
)
async def edit(
    session: Session,
    bucket: BucketName,
    settings: Annotated[Given, setting_options("bucket", edit=True)],
    clear: Annotated[list[str] | None, clear_option("bucket")] = None,
    dry_run: DryRun = False,
    force: Force = None,
) -> None:
    """Change settings of a bucket.

    Changes only the given settings of the current configuration, merges metadata, and shows the differences first. A
    ttl under two minutes also shortens the duplicate window, as ADR-8 requires.

    An edit that would lose data (fewer revisions, a shorter ttl, a limit below the stored data) is refused without
    --force lossy-edit, and the error reports how much would be lost. An edit after which a replica would hide data of
    its origin, or keep data that the origin drops (shorter-history, ttl-not-inherited ...) is refused too: change both,
    the safe one first.
    """
    check_changes(settings, clear)
    api = (await session.client()).api
    planned, found = await apply_edit.plan_edit(api, bucket, settings, clear or ())
    if "republish" in settings:
        for text in await origin_lookup.republishing(api, planned.after):
            session.warn(text)
    await flows.edit(
        session,
        f"{_word(str(stream_kind.kind_of(planned.after)))} `{bucket}`",
        {"name": bucket, "stream": planned.after["name"]},
        planned.differences,
        lambda: catalog.apply_edit(api, planned),
        dry_run=dry_run,
        needed=found,
        force=force,
        refusal=f"The edit of `{bucket}` would lose or hide data",
        empty="No changes",
    )


@command(
    "bucket seal",
    examples=["kvctl bucket seal orders-2025", "kvctl bucket seal orders-2025 --yes"],
    see=["bucket edit", "bucket delete", "table seal"],
    prints=(records.SEAL,),
)
async def seal(session: Session, bucket: BucketName, yes: Yes = False, dry_run: DryRun = False) -> None:
    """Make a bucket permanently read-only.

    Keys can still be read, and no longer expire. Later writes fail (exit code 1). A sealed bucket cannot be unsealed,
    but it can be deleted, and `kvctl bucket copy` copies it into a bucket that can be written. Mirrors and aggregates
    cannot be sealed: they would silently stop replicating.
    """
    api = (await session.client()).api
    if not dry_run:
        streams.require_writable(api)
    config = (await catalog.plan_seal(api, bucket))["config"]
    changed = not config.get("sealed")
    if changed and not dry_run:
        expires = " Its keys no longer expire." if config.get("max_age") else ""
        await session.confirm(f"Seal bucket `{bucket}`? This is permanent: it becomes read-only.{expires}", yes=yes)
        changed = await catalog.seal(api, bucket)
    flows.show_sealed(session, "bucket", bucket, changed=changed, dry_run=dry_run)


@command(
    "bucket delete",
    examples=["kvctl bucket delete orders", "kvctl bucket delete orders --yes"],
    see=["delete", "bucket ls"],
    prints=(records.BUCKET_DELETION, records.CHANGE),
    forces=lambda: (hazards.UNREACHABLE_STREAM,),
)
@deletes("bucket")
async def delete(
    session: Session,
    bucket: BucketName,
    yes: Yes = False,
    confirm: Confirm = None,
    dry_run: DryRun = False,
    force: Force = None,
) -> None:
    """Delete a bucket and its data.

    If mirrors and aggregates replicate the bucket, they are listed first, and the bucket's name must be typed or given
    with --confirm. They keep their data and receive nothing new. If the bucket is recreated, its mirrors are stale.

    A stream that does not answer may be a replica: the deletion is then refused without --force unreachable-stream.
    """
    api = (await session.client()).api
    status, place = await overview.describe(api, bucket)
    dependents = place.dependents(status.stream) if place else None
    result: dict[str, Any] = {
        "name": bucket,
        "stream": status.stream,
        "kind": str(status.kind),
        "values": status.values,
        "dependents": None if dependents is None else [details.dependent_row(item) for item in dependents],
    }
    if dry_run:
        effect = f"deletes {_contents(status)}"
        flows.show_deletion(session, _named(status, bucket), result, effect, dependents or ())
        return
    stream_kind.refuse(status.config, forcible=False)
    hazards.refuse(graph.unknown(dependents or ()), force, f"`{bucket}` was not deleted")
    await _confirm_deletion(session, status, dependents, bucket, yes, confirm)
    await catalog.delete(api, status.stream)
    flows.show_result(session, {**result, "changed": True}, f"Deleted {_named(status, bucket)}")


async def _create(
    session: Session, api: "jetstream_api.Api", wanted: dict[str, Any], warnings: Sequence[str]
) -> "catalog.Creation":
    """Create the bucket, and report mirrors and aggregates that may still hold the data of an earlier one."""
    mirrored = await overview.is_served_by_others(api, wanted["name"])
    made = await catalog.create_like(api, wanted)
    if mirrored and made.created:
        await data.warn_of_stale(session, api, wanted["name"])
    for text in warnings if made.created else ():
        session.warn(text)
    return made


def check_changes(changes: Mapping[str, Any], clear: list[str] | None) -> None:
    """Validate the changes before anything is sent. Raises UsageError."""
    if not changes and not clear:
        raise UsageError("Nothing to change", hint="List the settings with `kvctl bucket edit --help`")
    config.edited({}, {}, [name for name in clear or () if not name.startswith("metadata.")])
    both = sorted({name.replace("-", "_") for name in clear or ()} & changes.keys())
    if both:
        raise UsageError(f"`{both[0].replace('_', '-')}` cannot be both set and cleared")


async def _confirm_deletion(
    session: Session,
    status: "config.BucketStatus",
    dependents: "Sequence[graph.Dependent] | None",
    name: str,
    yes: bool,
    confirm: str | None,
) -> None:
    what, holds = _named(status, name), counted(status.values, "entry")
    details.remark(session, status)
    if dependents is None:
        session.warn("Cannot list the streams of this account: the replicas of the bucket are unknown")
    simple, typed = f"Delete {what} with {holds}?", f"This deletes {what} with {holds}"
    await flows.confirm_named(session, name, dependents or (), yes=yes, confirm=confirm, simple=simple, typed=typed)


def _word(kind: str) -> str:
    return kind if kind in ("mirror", "aggregate", "stream") else "bucket"


def _contents(status: "config.BucketStatus") -> str:
    copy = "a copy of " if stream_info.sources_of(status.config) and not status.config.get("subjects") else ""
    return f"{copy}{counted(status.values, 'entry')} ({format_size(status.bytes)})"


def _named(status: "config.BucketStatus", name: str) -> str:
    sources = stream_info.sources_of(status.config)
    origins = [f"`{origin}`" for origin in dict.fromkeys(map(hazards.name_of, sources))]
    kind = str(status.kind)
    word = _word(kind)
    if not origins:
        return f"{word} `{name}`"
    return f"{word} `{name}` " + (f"(from {joined(origins)})" if kind == "aggregate" else f"of {joined(origins)}")
