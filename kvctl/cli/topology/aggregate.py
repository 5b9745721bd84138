"""`kvctl aggregate`: create, inspect and delete aggregates, change their origins."""

from dataclasses import replace
from typing import Annotated

import kvctl
from kvctl.cli import facts, records
from kvctl.cli.app.command import command, group
from kvctl.cli.app.options import (
    Confirm,
    DryRun,
    Force,
    NewName,
    Yes,
    argument,
    bucket_names,
    deletes,
    flag,
    live,
    option,
)
from kvctl.cli.app.session import Session
from kvctl.cli.bucket import manage
from kvctl.cli.bucket.options import Given, clear_option, setting_options
from kvctl.cli.flows import show_config, show_result, warn_of_hazards
from kvctl.cli.topology.replicas import DenyPurge, NoWait, WaitFor, build, list_replicas, show_replica
from kvctl.errors import UsageError
from kvctl.phrases import counted
from kvctl.topology.apply import builders, origin_removal
from kvctl.topology.hazards import hazards
from kvctl.topology.model import notation

group(
    "aggregate",
    """Buckets merged from other buckets

    An aggregate is a bucket that replicates from one or more origins: all their keys or some, under the same names or
    new ones, also from other domains and accounts. Clients read and watch it like any bucket.

    An origin is a bucket name, or comma-separated fields as in `bucket=ORDERS,keys=NEW.>,prefix=orders.new`: `bucket`
    or `stream`, `keys` (repeatable), `prefix`, `map=SRC:DEST` (repeatable), `domain`, `api`, `deliver`. Without prefix
    or map, a filter loses its literal head (`NEW.>` lands as `>`), and unfiltered keys keep their names.
    """,
)

Name = Annotated[str, argument("NAME", "Name of the aggregate", live("buckets", kinds=("aggregate",)))]
Origins = Annotated[
    list[str], option("--origin", "SPEC", "Bucket, or `bucket=B,keys=F,prefix=P,...`; repeatable", bucket_names)
]
Spec = Annotated[str, argument("SPEC", "Bucket, or `bucket=B,keys=F,prefix=P,...`", bucket_names)]
Keys = Annotated[list[str] | None, option("--keys", "FILTER", "Keys to replicate, with one origin; repeatable")]
Prefix = Annotated[str | None, option("--prefix", "P", "Prefix of the keys, with one origin")]
Map = Annotated[
    list[str] | None, option("--map", "SRC:DEST", "Mapping of key names, as in `*.*:stock.$2.$1`; repeatable")
]
AggregateSettings = Annotated[Given, setting_options("aggregate")]
Writable = Annotated[bool, flag("--writable", "Allow writes, which change only the aggregate")]


@command(
    "aggregate create",
    examples=[
        "kvctl aggregate create NEW_ORDERS --origin ORDERS --keys 'NEW.>'",
        "kvctl aggregate create EDGE --origin bucket=ORDERS,domain=hub,prefix=o --origin bucket=STOCK,prefix=s",
        "kvctl aggregate create STOCK_BY_SITE --origin STOCK --map '*.*:$2.$1' --dry-run",
    ],
    see=["help topologies", "help hazards", "aggregate add-origin", "mirror create"],
    prints=(records.REPLICA_CHANGE, records.ANY),
    forces=lambda: hazards.OF_AGGREGATES,
)
async def create(
    session: Session,
    name: NewName,
    origin: Origins,
    keys: Keys = None,
    prefix: Prefix = None,
    maps: Map = None,
    writable: Writable = False,
    *,
    settings: AggregateSettings,
    deny_purge: DenyPurge = False,
    no_wait: NoWait = False,
    wait_for: WaitFor = None,
    dry_run: DryRun = False,
    force: Force = None,
) -> None:
    """Create an aggregate of one or more buckets.

    An aggregate is read-only unless it is created with --writable. A value written to a writable aggregate stays until
    an origin writes the same key.

    The command waits until the aggregate holds everything its origins held at the start. On a timeout it exits with 9,
    and the aggregate keeps filling. Configurations that would lose, hide or mix up data are refused, and all hazards
    are reported together. --force NAME overrides one.
    """
    origins = tuple(_parsed(origin, keys, prefix, maps))
    aggregate = kvctl.Aggregate(name, origins, writable=writable, deny_purge=deny_purge, **settings)
    aggregate.to_stream()  # raises before anything is sent
    plan = await builders.plan_aggregate((await session.client()).api, aggregate, force or ())
    await build(session, plan, "aggregate", force=force, wait_for=wait_for, no_wait=no_wait, dry_run=dry_run)


@command(
    "aggregate add-origin",
    examples=["kvctl aggregate add-origin EDGE STOCK", "kvctl aggregate add-origin EDGE bucket=STOCK,prefix=stock"],
    see=["aggregate remove-origin"],
    prints=(records.REPLICA_CHANGE, records.ANY),
    forces=lambda: hazards.OF_AGGREGATES,
)
async def add_origin(
    session: Session,
    name: Name,
    origin: Spec,
    keys: Keys = None,
    prefix: Prefix = None,
    maps: Map = None,
    no_wait: NoWait = False,
    wait_for: WaitFor = None,
    dry_run: DryRun = False,
    force: Force = None,
) -> None:
    """Add an origin to an aggregate.

    The aggregate receives everything the new origin holds. The command waits for it, as `aggregate create` does.
    """
    (added,) = _parsed([origin], keys, prefix, maps)
    added.to_source(name)  # usage errors are raised before anything is sent
    plan = await builders.plan_origin((await session.client()).api, name, added, force or ())
    await build(session, plan, "aggregate", force=force, wait_for=wait_for, no_wait=no_wait, dry_run=dry_run)


@command(
    "aggregate remove-origin",
    examples=["kvctl aggregate remove-origin EDGE STOCK --yes", "kvctl aggregate remove-origin EDGE STOCK --keep-data"],
    see=["aggregate add-origin"],
    prints=(records.ORIGIN_REMOVAL, records.ANY),
    forces=lambda: (hazards.LAST_ORIGIN,),
)
async def remove_origin(
    session: Session,
    name: Name,
    bucket: Annotated[str, argument("BUCKET", "Origin to remove", live("origins"))],
    keep_data: Annotated[bool, flag("--keep-data", "Keep its keys in the aggregate")] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    force: Force = None,
) -> None:
    """Remove an origin from an aggregate, with its keys.

    The keys that came from the origin are deleted, with their history. Keys that another origin or a client also wrote
    are kept and counted. Values that the origin overwrote can be restored with `kvctl topology audit NAME --repair`.
    The last origin cannot be removed: delete the aggregate instead.

    Servers up to 2.15 have a bug (nats-server issue 8505): if one crashes later, values that the history limit had
    dropped before the removal may return.
    """
    api = (await session.client()).api
    found = await origin_removal.plan(api, name, bucket, keep_data=keep_data)
    if dry_run:
        show_config(session, f"aggregate `{name}`", found.after, live=found.info)
    if len(found.links) > 1:
        session.warn(f"`{bucket}` is an origin of `{name}` {len(found.links)} times: all of these links are removed")
    if found.mixed:
        session.warn(f"{counted(len(found.mixed), 'key')} of `{bucket}` are kept: others wrote them, too")
    if found.contested:
        keys, repair = counted(len(found.contested), "key"), f"`kvctl topology audit {name} --repair`"
        session.warn(f"{keys} of `{bucket}` may have overwritten another origin's: restore them with {repair}")
    if dry_run:
        warn_of_hazards(session, found.hazards)
        return
    hazards.refuse(found.hazards, force, f"`{name}` would lose its last origin")
    if not keep_data:
        await session.confirm(f"Remove origin `{bucket}` from `{name}`, with its keys?", yes=yes)
    with session.progress(f"Removing keys of {bucket}", unit="entries") as progress:
        taken = await origin_removal.apply(api, found, force or (), progress.advance)
    row = {"name": name, "stream": found.after["name"], "origins": facts.origin_rows(found.after)}
    row |= {"removed": taken.messages, "kept": len(taken.kept), "changed": True}
    if len(taken.kept) > len(found.mixed):
        session.warn(f"{counted(len(taken.kept), 'key')} of `{bucket}` are kept: others wrote them in the meantime")
    links = f" ({len(found.links)} links)" if len(found.links) > 1 else ""
    show_result(
        session, row, f"Removed origin `{bucket}`{links} from `{name}`, with {counted(taken.messages, 'entry')}"
    )


@command(
    "aggregate ls",
    examples=["kvctl aggregate ls", "kvctl aggregate ls -o json"],
    see=["bucket ls"],
    prints=(records.REPLICA_ROW,),
    listing=True,
)
async def ls(session: Session) -> None:
    """List aggregates.

    LAG is the number of missing entries that the server knows of, over all origins. A lag of 0 does not prove that
    nothing is missing. LAST SEEN is when the server last heard from the quietest origin.
    """
    await list_replicas(session, "aggregate", "No aggregates; create one with `kvctl aggregate create`")


@command(
    "aggregate show",
    examples=["kvctl aggregate show EDGE"],
    see=["bucket show", "doctor"],
    prints=(records.BUCKET,),
    in_pipe="fields",
)
async def show(session: Session, name: Name) -> None:
    """Show an aggregate's origins, progress and settings.

    Warnings name the problems of its configuration.
    """
    await show_replica(session, name, "aggregate")


@command(
    "aggregate edit",
    examples=["kvctl aggregate edit EDGE --max-bytes 1GiB", "kvctl aggregate edit EDGE --clear description --dry-run"],
    see=["bucket edit", "aggregate show"],
    prints=(records.BUCKET_EDIT, records.DIFFERENCE),
    forces=lambda: manage.edit_hazards(),
)
async def edit(
    session: Session,
    name: Name,
    settings: Annotated[Given, setting_options("aggregate", edit=True)],
    clear: Annotated[list[str] | None, clear_option("aggregate")] = None,
    dry_run: DryRun = False,
    force: Force = None,
) -> None:
    """Change settings of an aggregate, as `bucket edit` does.

    Changes only the given settings, and shows the differences first. `aggregate add-origin` and
    `aggregate remove-origin` change its origins.

    An edit that would lose data, hide data of the origin, or keep data that the origin drops is refused without --force
    NAME.
    """
    manage.check_changes(settings, clear)
    await builders.find_aggregate((await session.client()).api, name)
    await manage.edit(session, name, settings, clear, dry_run, force)


@command(
    "aggregate delete",
    examples=["kvctl aggregate delete EDGE --yes"],
    see=["bucket delete"],
    prints=(records.BUCKET_DELETION, records.CHANGE),
    forces=lambda: (hazards.UNREACHABLE_STREAM,),
)
@deletes("name")
async def delete(
    session: Session,
    name: Name,
    yes: Yes = False,
    confirm: Confirm = None,
    dry_run: DryRun = False,
    force: Force = None,
) -> None:
    """Delete an aggregate. Its origins are not changed.

    If other streams replicate from the aggregate, they are listed, and its name must be typed or given with --confirm.
    While a possible reader does not answer, the deletion is refused without --force unreachable-stream.
    """
    await builders.find_aggregate((await session.client()).api, name)
    await manage.delete(session, name, yes, confirm, dry_run, force)


def _parsed(
    specs: list[str], keys: list[str] | None, prefix: str | None, maps: list[str] | None
) -> "list[kvctl.Origin]":
    """Parse origins; a single one may take its keys, prefix and maps from options. Raises UsageError."""
    origins = [notation.parse_origin(spec) for spec in specs]
    if not (keys or prefix is not None or maps):
        return origins
    if len(origins) > 1:
        raise UsageError(
            "`--keys`, `--prefix` and `--map` cannot be combined with several origins",
            hint="Set them in each origin: `--origin bucket=ORDERS,keys=NEW.>,prefix=orders`",
        )
    (origin,) = origins
    if prefix is not None and (not prefix or origin.prefix):
        raise UsageError("The prefix is given twice" if prefix else "The prefix must not be empty")
    every, mapped = (*origin.keys, *(keys or ())), (*origin.maps, *notation.parse_maps(maps or ()))
    return [replace(origin, keys=every, prefix=prefix or origin.prefix, maps=mapped)]
