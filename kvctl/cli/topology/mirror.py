"""`kvctl mirror`: create, inspect, promote and delete mirrors."""

from typing import Annotated

from kvctl.cli import records
from kvctl.cli.app.command import command, group
from kvctl.cli.app.options import Confirm, DryRun, Force, Yes, argument, bucket_names, deletes, flag, live, option
from kvctl.cli.app.session import Session
from kvctl.cli.bucket import manage
from kvctl.cli.bucket.options import Given, clear_option, setting_options
from kvctl.cli.flows import confirm_named, show_config, show_result
from kvctl.cli.topology.replicas import DenyPurge, NoWait, WaitFor, build, list_replicas, show_replica
from kvctl.errors import UsageError
from kvctl.jetstream import api as jetstream_api
from kvctl.phrases import counted
from kvctl.topology.apply import builders
from kvctl.topology.apply import edit as apply_edit
from kvctl.topology.hazards import hazards
from kvctl.topology.model import notation, origins
from kvctl.topology.survey import graph, inventory

group(
    "mirror",
    """Local read replicas of buckets

    The nearest mirror answers reads of a bucket; clients need no configuration. Writes and watches go to the bucket
    itself, the mirror's origin.
    """,
)

NewName = Annotated[str, argument("NAME", "Name: letters, digits, `_` and `-`, without prefix `KV_`")]
Name = Annotated[str, argument("NAME", "Name of the mirror", live("buckets", kinds=("mirror",)))]
Origin = Annotated[str | None, option("--origin", "BUCKET", "Bucket to replicate", bucket_names)]
OriginDomain = Annotated[str | None, option("--origin-domain", "NAME", "JetStream domain of the origin")]
OriginApi = Annotated[
    str | None, option("--origin-api", "PREFIX", "Prefix under which this account imports the origin's API")
]
Deliver = Annotated[str | None, option("--deliver", "PREFIX", "Subject prefix that the origin's account delivers on")]
MirrorSettings = Annotated[Given, setting_options("mirror")]
Keys = Annotated[list[str] | None, option("--keys", "FILTER", "Keys to replicate, where that is safe; repeatable")]


@command(
    "mirror create",
    examples=[
        "kvctl mirror create ORDERS_NYC --origin ORDERS --cluster nyc",
        "kvctl mirror create ORDERS_EDGE --origin ORDERS --origin-domain hub",
        "kvctl mirror create ORDERS_COPY --origin ORDERS --origin-api ORIGIN.API --deliver DELIVER.ORDERS.copy",
    ],
    see=["help topologies", "help hazards", "aggregate create", "mirror promote"],
    prints=(records.REPLICA_CHANGE, records.ANY),
    forces=lambda: hazards.OF_MIRRORS,
)
async def create(
    session: Session,
    name: NewName,
    given: Annotated[str | None, argument("ORIGIN", "Bucket to replicate, as with --origin", bucket_names)] = None,
    origin: Origin = None,
    origin_domain: OriginDomain = None,
    origin_api: OriginApi = None,
    deliver: Deliver = None,
    keys: Keys = None,
    *,
    settings: MirrorSettings,
    deny_purge: DenyPurge = False,
    no_wait: NoWait = False,
    wait_for: WaitFor = None,
    dry_run: DryRun = False,
    force: Force = None,
) -> None:
    """Create a mirror of a bucket.

    History and ttl default to the origin's, other settings do not. Configurations that would lose or hide data are
    refused, and all hazards are reported together. --force NAME overrides one.

    The command waits until the mirror holds everything its origin held at the start. On a timeout it exits with 9, and
    the mirror keeps filling.

    A mirror of some keys (--keys) would answer reads of all other keys with `not found`. It is refused where it can
    answer reads of its origin: use an aggregate with one origin instead.
    """
    if (given is None) == (origin is None):
        raise UsageError("Give the origin of the mirror", hint=f"`kvctl mirror create {name} --origin BUCKET`")
    external = notation.external(origin_domain, origin_api, deliver)
    wanted = origins.Origin(given or origin or "", keys=tuple(keys or ()), external=external)
    mirror = origins.Mirror(name, wanted, deny_purge=deny_purge, **settings)
    mirror.to_stream()  # usage errors are raised before anything is sent
    plan = await builders.plan_mirror((await session.client()).api, mirror, force or ())
    await build(session, plan, "mirror", force=force, wait_for=wait_for, no_wait=no_wait, dry_run=dry_run)


@command(
    "mirror ls",
    examples=["kvctl mirror ls", "kvctl mirror ls -o json"],
    see=["bucket ls"],
    prints=(records.REPLICA_ROW,),
    listing=True,
)
async def ls(session: Session) -> None:
    """List mirrors.

    LAG is the number of missing entries that the server knows of. A lag of 0 does not prove that nothing is missing.
    LAST SEEN is when the server last heard from the origin.
    """
    await list_replicas(session, "mirror", "No mirrors; create one with `kvctl mirror create`")


@command(
    "mirror show",
    examples=["kvctl mirror show ORDERS_NYC"],
    see=["bucket show", "doctor"],
    prints=(records.BUCKET,),
    in_pipe="fields",
)
async def show(session: Session, name: Name) -> None:
    """Show a mirror's origin, progress and settings.

    Warnings name the problems of its configuration.
    """
    await show_replica(session, name, "mirror")


@command(
    "mirror promote",
    examples=[
        "kvctl mirror promote ORDERS_NYC --as ORDERS_RESCUED",
        "kvctl mirror promote ORDERS_NYC --as ORDERS --delete-mirror",
    ],
    see=["bucket copy", "mirror delete"],
    prints=(records.PROMOTION, records.ANY),
    forces=lambda: (
        hazards.RECREATED_ORIGIN,
        hazards.SHADOWED_ORIGIN,
        hazards.LAGGING_REPLICA,
        hazards.UNREACHABLE_STREAM,
    ),
)
async def promote(
    session: Session,
    name: Name,
    bucket: Annotated[str, option("--as", "BUCKET", "Name of the new bucket")],
    delete_mirror: Annotated[bool, flag("--delete-mirror", "Delete the mirror after the copy is verified")] = False,
    yes: Yes = False,
    confirm: Confirm = None,
    dry_run: DryRun = False,
    force: Force = None,
) -> None:
    """Promote a mirror to an ordinary bucket, after its origin was lost.

    Every entry is copied, history and deletions included, and compared with the mirror's. The bucket assigns its own
    revisions and times. To reuse the name of the lost origin, delete the mirror: otherwise it would answer reads of the
    new bucket.

    A mirror that lacks entries of an origin that can be read is not promoted without --force lagging-replica. An origin
    that cannot be read is a warning.

    --delete-mirror asks for confirmation; use --yes in scripts. If other streams replicate from the mirror, they are
    listed, and its name must be typed or given with --confirm.
    """
    client = await session.client()
    found = await apply_edit.plan_promotion(client.api, name, bucket, delete_mirror=delete_mirror)
    for doubt in found.doubts:
        session.warn(doubt)
    if dry_run:
        remarks = [f"copies {counted(found.entries, 'entry')} of mirror `{name}`"]
        remarks += [f"mirror `{name}` is deleted after the copy"] if delete_mirror else []
        show_config(session, f"bucket `{bucket}`", found.config, found.hazards, remarks=remarks)
        return
    if delete_mirror:
        await _confirm_deletion(session, client.api, found, yes, confirm, force)
    with session.progress(f"Copying {name}", found.entries, unit="entries") as progress:
        count = await apply_edit.promote(
            client, found, delete_mirror=delete_mirror, force=force or (), advance=progress.advance
        )
    row = {"name": bucket, "stream": found.config["name"], "entries": count, "mirror_deleted": delete_mirror}
    show_result(
        session, {**row, "changed": True}, f"Promoted mirror `{name}` to bucket `{bucket}` ({counted(count, 'entry')})"
    )


async def _confirm_deletion(
    session: Session,
    api: "jetstream_api.Api",
    found: "apply_edit.Promotion",
    yes: bool,
    confirm: str | None,
    force: list[str] | None,
) -> None:
    """Confirm the deletion of the mirror: by name if it has readers, else y/N."""
    name = found.mirror
    readers = await inventory.dependents(api, found.info["config"]["name"])
    hazards.refuse(graph.unknown(readers), force, f"Mirror `{name}` was not promoted")
    simple = f"Delete mirror `{name}` after copying {counted(found.entries, 'entry')}?"
    typed = f"Mirror `{name}` is deleted after the copy"
    await confirm_named(session, name, readers, yes=yes, confirm=confirm, simple=simple, typed=typed)


@command(
    "mirror edit",
    examples=[
        "kvctl mirror edit ORDERS_NYC --max-bytes 1GiB",
        "kvctl mirror edit ORDERS_NYC --clear description --dry-run",
    ],
    see=["bucket edit", "mirror show"],
    prints=(records.BUCKET_EDIT, records.DIFFERENCE),
    forces=lambda: manage.edit_hazards(),
)
async def edit(
    session: Session,
    name: Name,
    settings: Annotated[Given, setting_options("mirror", edit=True)],
    clear: Annotated[list[str] | None, clear_option("mirror")] = None,
    dry_run: DryRun = False,
    force: Force = None,
) -> None:
    """Change settings of a mirror, as `bucket edit` does.

    Changes only the given settings, and shows the differences first. The origin and the keys of a mirror cannot be
    changed: create another mirror instead.

    An edit that would lose data, hide data of the origin, or keep data that the origin drops is refused without --force
    NAME.
    """
    manage.check_changes(settings, clear)
    await builders.find_mirror((await session.client()).api, name)
    await manage.edit(session, name, settings, clear, dry_run, force)


@command(
    "mirror delete",
    examples=["kvctl mirror delete ORDERS_NYC --yes"],
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
    """Delete a mirror. Its origin is not changed.

    The origin or another mirror answers its reads from then on. If other streams replicate from the mirror, they are
    listed, and its name must be typed or given with --confirm. While a possible reader does not answer, the deletion is
    refused without --force unreachable-stream.
    """
    await builders.find_mirror((await session.client()).api, name)
    await manage.delete(session, name, yes, confirm, dry_run, force)
