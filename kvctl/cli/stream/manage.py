"""Commands of `kvctl stream` on streams, and their views: ls, show, create, edit, delete, purge."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from kvctl.cli import flows
from kvctl.cli.app.command import command, group
from kvctl.cli.app.options import Confirm, DryRun, Force, Yes, argument, deletes, number, one_of, option
from kvctl.cli.app.session import Session
from kvctl.cli.bucket.details import cluster_row, dependent_row, servers_view
from kvctl.cli.facts import of_stream, row_of
from kvctl.cli.flows import confirm_named, show_config, show_creation, show_deletion, show_planned, show_result
from kvctl.cli.records import ANY, CHANGE, DIFFERENCE, STREAM, STREAM_DELETION, STREAM_EDIT, STREAM_PURGE, STREAM_ROW
from kvctl.cli.stream.options import (
    ConfigFile,
    Description,
    Settings,
    StreamName,
    apply_settings,
    check_stream,
    dated_by_server,
    named,
    settings_columns,
)
from kvctl.errors import NoResponders, RequestTimeout, UsageError
from kvctl.jetstream import config_diff, config_text, edits, streams
from kvctl.jetstream.stream_info import Source, SourceState, StreamInfo, source_states, sources_of
from kvctl.kv import stream_kind
from kvctl.phrases import counted, joined
from kvctl.render.fields import LEADER, columns, number_text, stored, title_in
from kvctl.render.view import Column, Line, Row, View, age_text, document
from kvctl.topology.apply import edit as apply_edit
from kvctl.topology.hazards import hazards, lossy_edit
from kvctl.topology.survey import graph, inventory

group(
    "stream",
    """JetStream streams, including those of buckets

    A stream stores messages by subject; consumers deliver them. Buckets, mirrors, aggregates, tables and repositories
    are streams, too: use their own commands to change them.
    """,
)

Subjects = Annotated[list[str] | None, option("--subject", "SUBJECT", "Subject to listen on; repeatable")]
Storage = Annotated[str | None, option("--storage", "KIND", "`file` or `memory`", one_of("file", "memory"))]
Replicas = Annotated[int | None, number("--replicas", "Number of stream replicas, 1 to 5")]


@command(
    "stream ls",
    examples=["kvctl stream ls", "kvctl stream ls --subject 'orders.>' -o name"],
    see=["bucket ls"],
    prints=(STREAM_ROW,),
    listing=True,
)
async def ls(
    session: Session,
    subject: Annotated[
        str | None, option("--subject", "FILTER", "List only streams that listen on this subject")
    ] = None,
) -> None:
    """List streams.

    KIND is `bucket`, `mirror`, `aggregate`, `table`, `repository`, or `stream` for any other stream. STATE is `offline`
    if the servers of a stream do not answer, and its contents are empty then; if only its name is known, its KIND is
    `unknown`.
    """
    api = (await session.client()).api
    found = await streams.listing(api)
    infos, offline = list(found.answering), found.silent
    if subject is not None:
        wanted = set(await streams.names(api, subject))
        infos = [info for info in infos if info["config"]["name"] in wanted]
        offline = {name: info for name, info in offline.items() if name in wanted}
    session.show(listing_view(infos, offline))


@command(
    "stream show",
    examples=["kvctl stream show ORDERS", "kvctl stream show ORDERS -o json | jq .config"],
    see=["consumer ls", "bucket show"],
    prints=(STREAM,),
    in_pipe="fields",
)
async def show(session: Session, stream: StreamName) -> None:
    """Show a stream's state, settings, servers and origins.

    If its servers do not answer, it is `offline`: its configuration and servers are shown as far as others know them.
    """
    try:
        session.show(stream_view(await find(session, stream)))
    except (NoResponders, RequestTimeout):
        info = (await streams.listing((await session.client()).api)).silent.get(stream)
        if info is None:
            raise
        session.show(stream_view(info, offline=True))
        session.warn(f"`{stream}` is offline: only what others know is shown")


@command(
    "stream create",
    examples=[
        "kvctl stream create ORDERS --subject 'orders.>' --set max_age=30d",
        "kvctl stream create ORDERS --config orders.yaml --replicas 3",
        "kvctl stream show ORDERS -o json | kvctl stream create COPY --config - --subject 'copy.>'",
    ],
    see=["stream edit", "bucket add", "consumer add"],
    prints=(CHANGE, ANY),
)
async def create(
    session: Session,
    stream: Annotated[str | None, argument("NAME", "Name of the stream [default: `name` in the file]")] = None,
    subjects: Subjects = None,
    storage: Storage = None,
    replicas: Replicas = None,
    description: Description = None,
    config: ConfigFile = None,
    settings: Settings = None,
    dry_run: DryRun = False,
) -> None:
    """Create a stream.

    The configuration is the server's own JSON, from a file, then from --set, then from the other options. Durations
    may be written as `90s`, sizes as `10MB`.

    If the stream already exists with this configuration, nothing changes. With another configuration the command fails
    and shows the differences. The stored configuration is read back: if the server silently dropped a setting, the
    creation is undone.
    """
    asked = await dated_by_server(session, apply_settings(session, {}, config, settings, config_text.STREAM))
    wanted = _with_options(asked, subjects, storage, replicas, description)
    if stream is None and not wanted.get("name"):
        raise UsageError("Missing argument `NAME`", hint="Give it as an argument, or as `name` in the file")
    name = wanted["name"] = check_stream(stream if stream is not None else wanted["name"])
    api = (await session.client()).api
    target = edits.stream(api, name)
    if dry_run:
        if await edits.existing(target, wanted) is None:
            show_config(session, f"stream `{name}`", wanted, schema=config_text.STREAM)
            return
        created = False
    else:
        _, created = await edits.create(target, wanted)
    show_creation(session, f"stream `{name}`", {"name": name}, created=created)


@command(
    "stream edit",
    examples=[
        "kvctl stream edit ORDERS --set max_age=7d --dry-run",
        "kvctl stream edit ORDERS --set max_msgs=1000 --force lossy-edit",
        "kvctl stream edit ORDERS --config orders.yaml",
    ],
    see=["stream show", "bucket edit"],
    prints=(STREAM_EDIT, DIFFERENCE),
    forces=lambda: hazards.OF_STREAM_EDITS,
)
async def edit(
    session: Session,
    stream: StreamName,
    subjects: Subjects = None,
    storage: Storage = None,
    replicas: Replicas = None,
    description: Description = None,
    config: ConfigFile = None,
    settings: Settings = None,
    dry_run: DryRun = False,
    force: Force = None,
) -> None:
    """Change settings of a stream.

    Only the fields of the file, of --set and of the other options are changed. The difference is shown first. A change
    that would lose data, harm replicas, or break the table or repository of the stream is refused. --force NAME
    overrides one hazard.
    """
    if not (subjects or storage or replicas or description is not None or config or settings):
        raise UsageError("Nothing to change", hint="Set a field, as in `--set max_age=1h`")
    asked = apply_settings(session, {}, config, None, config_text.STREAM)
    info = await find(session, stream)
    after = apply_settings(session, {**config_text.copied(info["config"]), **asked}, None, settings, config_text.STREAM)
    after = await dated_by_server(session, after, stream)
    after = {**_with_options(after, subjects, storage, replicas, description), "name": stream}
    api = (await session.client()).api
    differing = config_diff.differences(info["config"], after, config_text.STREAM)
    found = await apply_edit.hazards_of(api, info, after, lossy_edit.STREAM) if differing else []
    await flows.edit(
        session,
        f"stream `{stream}`",
        {"name": stream},
        differing,
        lambda: edits.edit(edits.stream(api, stream), info, after),
        dry_run=dry_run,
        needed=found,
        force=force,
        refusal=f"The edit of stream `{stream}` is not safe",
    )


@command(
    "stream delete",
    examples=["kvctl stream delete ORDERS", "kvctl stream delete ORDERS --yes"],
    see=["stream purge"],
    prints=(STREAM_DELETION, CHANGE),
    forces=lambda: (stream_kind.FOREIGN_KIND, hazards.UNREACHABLE_STREAM),
)
@deletes("stream")
async def delete(
    session: Session,
    stream: StreamName,
    yes: Yes = False,
    confirm: Confirm = None,
    dry_run: DryRun = False,
    force: Force = None,
) -> None:
    """Delete a stream with its messages and consumers.

    If other streams replicate from the stream, they are listed, and its name must be typed or given with --confirm. The
    stream of a table or a repository is refused without --force foreign-kind. While a possible reader does not answer,
    the deletion is refused without --force unreachable-stream.
    """
    info = await find(session, stream)
    api = (await session.client()).api
    stream_kind.refuse(info["config"], force or ())
    readers = await inventory.dependents(api, stream)
    state = info["state"]
    row: dict[str, Any] = {
        "name": stream,
        "messages": state["messages"],
        "consumers": state.get("consumer_count", 0),
        "dependents": [dependent_row(item) for item in readers],
    }
    holds = f"{counted(state['messages'], 'message')} and {counted(row['consumers'], 'consumer')}"
    if dry_run:
        show_deletion(session, f"stream `{stream}`", row, f"deletes {holds}", readers)
        return
    hazards.refuse(graph.unknown(readers), force, f"Stream `{stream}` was not deleted")
    simple, typed = f"Delete stream `{stream}` with {holds}?", f"This deletes stream `{stream}` with {holds}"
    await confirm_named(session, stream, readers, yes=yes, confirm=confirm, simple=simple, typed=typed)
    await edits.delete(edits.stream(api, stream))
    show_result(session, {**row, "changed": True}, f"Deleted stream `{stream}`")


@command(
    "stream purge",
    examples=[
        "kvctl stream purge ORDERS --yes",
        "kvctl stream purge ORDERS --subject 'orders.old.>' --dry-run",
        "kvctl stream purge ORDERS --keep 1000 --yes",
    ],
    see=["stream delete-message", "purge"],
    prints=(STREAM_PURGE,),
    forces=lambda: (stream_kind.FOREIGN_KIND, hazards.UNREACHABLE_STREAM),
)
async def purge(
    session: Session,
    stream: StreamName,
    subject: Annotated[str | None, option("--subject", "FILTER", "Purge only messages on these subjects")] = None,
    sequence: Annotated[int | None, number("--seq", "Purge only messages before this sequence")] = None,
    keep: Annotated[int | None, number("--keep", "Number of messages to keep")] = None,
    yes: Yes = False,
    confirm: Confirm = None,
    dry_run: DryRun = False,
    force: Force = None,
) -> None:
    """Purge all or some messages of a stream.

    Purged messages leave no trace, not even a marker in a bucket, and watchers and replicas are not notified. Mirrors
    and aggregates keep their copies and serve them. Messages purged from a mirror or an aggregate return only with
    `topology audit --repair`. The name of a stream that is replicated, or that replicates others, must therefore be
    typed or given with --confirm. Messages that arrive after the prompt are kept. --keep counts all matching messages.
    Sequences continue as before.
    """
    if subject == "":
        raise UsageError("`--subject` must not be empty", hint="Omit it to purge messages on all subjects")
    if sequence is not None and keep is not None:
        raise UsageError("`--seq` and `--keep` cannot be combined")
    check_stream(stream)
    if not (dry_run or session.interactive or confirm):
        await session.confirm(f"Purge stream `{stream}`?", yes=yes)  # before anything is sent
    info = await find(session, stream)
    stream_kind.refuse(info["config"], force or ())
    client = await session.client()
    readers = await inventory.dependents(client.api, stream)
    replicates = bool(sources_of(info["config"]))
    told = dry_run or not yes or (confirm is None and (replicates or readers))
    count = await _purgeable(session, info, subject, sequence, keep) if told else 0
    purged = f"{'up to ' if sequence else ''}{counted(count, 'message')}"
    if dry_run:
        row = {"name": stream, "messages": count, "dependents": [dependent_row(item) for item in readers]}
        kept = [f"{item.node.kind} `{item.node.name}` keeps its copy" for item in readers]
        remarks = [f"purges {purged} of {info['state']['messages']:,}", *kept]
        show_planned(session, "change", f"stream `{stream}`", document(row), remarks=remarks)
        return
    hazards.refuse(graph.unknown(readers), force, f"Stream `{stream}` was not purged")
    if replicates:
        _note_origins(session, info["config"])
    simple, typed = f"Purge {purged} of stream `{stream}`?", f"This purges {purged} of stream `{stream}`"
    await confirm_named(
        session, stream, readers, yes=yes, confirm=confirm, simple=simple, typed=typed, replicates=replicates
    )
    if sequence is None and keep is None:
        sequence = info["state"]["last_seq"] + 1
    removed = await client.jetstream.stream(stream).purge(subject=subject, sequence=sequence, keep=keep, confirm=stream)
    text = f"Purged {counted(removed, 'message')} of stream `{stream}`"
    show_result(session, {"name": stream, "messages": removed}, text)


def _note_origins(session: Session, config: "config_text.Config") -> None:
    """Say that what is purged from a replica returns only with a repair."""
    origins = [f"`{name}`" for name in dict.fromkeys(map(hazards.name_of, sources_of(config)))]
    text = f"`{config['name']}` replicates from {joined(origins)}: purged messages return only with "
    session.note(f"{text}`kvctl topology audit {hazards.name_of(config)} --repair`", always=True)


async def find(session: Session, stream: str) -> StreamInfo:
    """Read the stream's info. Raises StreamNotFound."""
    check_stream(stream)
    with named(stream):
        return await streams.info((await session.client()).api, stream)


def _with_options(
    config: "config_text.Config",
    subjects: list[str] | None,
    storage: str | None,
    replicas: int | None,
    description: str | None,
) -> "config_text.Config":
    given = {"subjects": subjects, "num_replicas": replicas, "description": description}
    config = {**config, **{name: value for name, value in given.items() if value}}
    if storage is not None:
        config_text.assign(config, f"storage={storage}", config_text.STREAM)
    return config


async def _purgeable(
    session: Session, info: StreamInfo, subject: str | None, sequence: int | None, keep: int | None
) -> int:
    """Count matching messages; with a sequence, an upper bound."""
    count: int = info["state"]["messages"]
    if subject is not None:
        counts = await streams.subjects((await session.client()).api, info["config"]["name"], subject)
        count = sum(counts.values())
    if sequence is not None:
        count = min(count, max(sequence - info["state"]["first_seq"], 0))
    return max(count - (keep or 0), 0)


def listing_view(infos: Iterable[StreamInfo], offline: Mapping[str, StreamInfo | None]) -> View:
    """Build the view of all streams; those of `offline` streams without info have only a name."""
    infos, away = list(infos), [info for info in offline.values() if info is not None]
    known = {info["config"]["name"]: info["config"] for info in (*infos, *away)}
    rows = [*(_summary(info, known) for info in infos), *(_summary(info, known, offline=True) for info in away)]
    rows += [row_of(STREAM_ROW, _UNKNOWN, name=name) for name, info in offline.items() if info is None]
    rows.sort(key=lambda row: str(row["name"]))
    shown = columns(
        "name kind subjects messages bytes consumers replicas state created description",
        kind=Column("kind", style=lambda kind: "cyan" if kind != "stream" else ""),
        state=_STATE,
    )
    empty = "No streams; create one with `kvctl stream create`"
    return View(columns=shown, rows=rows, empty=empty)


def stream_view(info: StreamInfo, *, offline: bool = False) -> View:
    """Build the view of one stream; of an `offline` one, only its configuration and servers are known."""
    row = stream_row(info, offline=offline)
    cluster = row["cluster"] or {}
    sections = [
        ("Servers", servers_view(cluster)),
        ("Origins", View(columns=_ORIGINS, rows=row["origins"])),
        ("Alternates, nearest first", View(columns=_ALTERNATES, rows=row["alternates"])),
    ]
    shown = "name subjects description num_replicas storage retention"
    settings = settings_columns(row["config"], config_text.STREAM, shown)
    groups = (_GENERAL, _SUBJECTS, _CONTENTS, (*_KEPT, *settings), (stored(row["replicas"], row["storage"]), LEADER))
    return document(row, tsv=STREAM.columns, title=_title, groups=groups, sections=sections)


def _title(row: Row) -> Line:
    return title_in(row, "stream", row["kind"] if row["kind"] != "stream" else None)


def stream_row(info: StreamInfo, *, offline: bool = False) -> dict[str, Any]:
    """Return a stream as a JSON object; of an `offline` one, what only its servers know is null."""
    placed = graph.placed_in(info) if offline else None
    return row_of(
        STREAM,
        of_stream(info, offline=offline),
        kind=_kind(info, {}),
        cluster=cluster_row(info.get("cluster") or {}, placed, offline=offline),
        origins=[_origin(origin) for origin in source_states(info)],
        alternates=info.get("alternates") or [],
    )


def _summary(info: StreamInfo, known: dict[str, Any], *, offline: bool = False) -> dict[str, Any]:
    return row_of(STREAM_ROW, of_stream(info, offline=offline), kind=_kind(info, known))


def _kind(info: StreamInfo, known: dict[str, Any]) -> str:
    """Return the kind that the stream's owner has noted, or that of a bucket, or `stream`."""
    owner = (info["config"].get("metadata") or {}).get(stream_kind.KIND)
    return owner or str(stream_kind.kind_of(info["config"], known) or "stream")


def _origin(origin: SourceState) -> dict[str, Any]:
    active = origin.get("active", -1)
    return {
        "stream": origin.get("name", ""),
        "api": Source.parse(origin).api or None,
        "lag": origin.get("lag", 0),
        "last_seen": None if active < 0 else active / 1e9,
        "error": (origin.get("error") or {}).get("description"),
    }


_UNKNOWN = {"kind": "unknown", "subjects": [], "state": "offline"}
_STATE = Column("state", style="red", keep=True)
_GENERAL = columns("description", description="")
_SUBJECTS = columns("subjects", subjects="listens on")
_CONTENTS = columns(
    "messages bytes subject_count first_sequence last_sequence last_time consumers created",
    bytes="stored",
    subject_count=Column("subject_count", "distinct subjects", text=number_text),
    first_sequence=Column("first_sequence", text=number_text),
    last_sequence=Column("last_sequence", text=number_text),
    last_time=Column("last_time", "last message", text=age_text),
)
_KEPT = columns("retention")
_ORIGINS = columns("stream api lag last_seen error", error=Column("error", style="red"))
_ALTERNATES = columns("name cluster domain")
