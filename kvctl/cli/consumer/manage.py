"""`kvctl consumer`: create, inspect, edit, pause and delete consumers."""

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from functools import partial
from typing import Annotated, Any

from kvctl.cli import flows, records
from kvctl.cli.app.command import command, group
from kvctl.cli.app.options import (
    DryRun,
    OptionGroup,
    Unasked,
    argument,
    deletes,
    duration,
    flag,
    moment,
    number,
    one_of,
    option,
)
from kvctl.cli.app.session import Session
from kvctl.cli.flows import show_config, show_creation, show_deletion, show_planned, show_result
from kvctl.cli.records import CONSUMER
from kvctl.cli.stream.options import (
    ConfigFile,
    ConsumerName,
    Settings,
    StreamName,
    apply_settings,
    by_server,
    check_consumer,
    check_stream,
    dated_by_server,
    settings_columns,
)
from kvctl.errors import KvctlError, UsageError
from kvctl.jetstream import config_diff, config_text, direct_get, edits, multi_get, streams
from kvctl.jetstream.consumers import admin
from kvctl.phrases import counted, quoted
from kvctl.render.fields import FIELDS, LEADER, columns, number_text, title_in
from kvctl.render.view import Column, Line, Row, View, age_text, document, duration_text
from kvctl.units import duration_from_ns, duration_ns, duration_seconds, format_time, parse_time, parse_utc

group(
    "consumer",
    """Consumers: read positions on streams

    A consumer remembers which messages it delivered and which were acknowledged. Programs that pull from the same
    consumer share its messages. Each message goes to one of them, and is redelivered if it is not acknowledged. `add`
    is also `create`, as for all other resources.
    """,
)

_DELIVER = ("all", "last", "new", "last_per_subject", "by_start_sequence", "by_start_time")
_ACKS = ("explicit", "none", "all")

NewConsumer = Annotated[
    str | None, argument("CONSUMER", "Name; an ephemeral consumer without one gets a generated name")
]


def _collect(given: Mapping[str, Any]) -> "config_text.Config":
    """Convert options to fields of the configuration. Raises UsageError."""
    found: config_text.Config = {name: value for name, value in given.items() if value is not None and value != []}
    if "backoff" in found and "ack_wait" in found:
        raise UsageError("`--backoff` and `--ack-wait` cannot be combined")
    for name, words in (("deliver_policy", _DELIVER), ("ack_policy", _ACKS)):
        if name in found:
            found[name] = found[name].replace("-", "_")
            if found[name] not in words:
                raise UsageError(f"`{given[name]}` is not a policy", hint=f"Use one of {', '.join(words)}")
    for name in ("ack_wait", "inactive_threshold"):
        if name in found:
            found[name] = duration_ns(found[name])
    if "backoff" in found:
        found["backoff"] = [duration_ns(wait) for wait in found["backoff"]]
    return found


_SETTINGS: dict[str, tuple[Any, Any]] = {
    "filters": (list[str], option("--filter", "SUBJECT", "Deliver only messages on this subject; repeatable")),
    "deliver_policy": (
        str,
        option("--deliver-policy --deliver", "POLICY", f"Start position: {', '.join(_DELIVER[:4])}", one_of(*_DELIVER)),
    ),
    "opt_start_seq": (int, number("--start-seq", "Start at this sequence")),
    "opt_start_time": (int, moment("--start-time", "Start at the first message at or after this time")),
    "ack_policy": (
        str,
        option("--ack-policy --ack", "POLICY", f"Acknowledgement policy: {', '.join(_ACKS)}", one_of(*_ACKS)),
    ),
    "ack_wait": (timedelta, duration("--ack-wait --wait", "Time to wait for an acknowledgement")),
    "max_deliver": (int, number("--max-deliver", "Maximum deliveries per message")),
    "backoff": (list[timedelta], duration("--backoff", "Redelivery delays, one per attempt; repeatable")),
    "max_ack_pending": (int, number("--max-ack-pending", "Maximum number of unacknowledged messages")),
    "durable": (bool, flag("--durable/--ephemeral", "Keep until deleted, or only while it is used")),
    "inactive_threshold": (
        timedelta,
        duration("--inactive-threshold", "Delete the consumer after this time without pulls"),
    ),
    "num_replicas": (int, number("--replicas", "Number of stream replicas, 1 to 5")),
    "description": (str, option("--description", "TEXT", "Description")),
}
"""Type and option of each field of the configuration; `filters` and `durable` stand for several fields."""


def _options(*left_out: str) -> OptionGroup:
    """Return the options of all these fields but some."""
    options = {name: (Annotated[kind | None, option], None) for name, (kind, option) in _SETTINGS.items()}
    return OptionGroup({name: options[name] for name in options if name not in left_out}, _collect)


@command(
    "consumer ls",
    examples=["kvctl consumer ls ORDERS", "kvctl consumer ls ORDERS -o json | jq '.[] | {name, pending}'"],
    see=["consumer show", "stream ls"],
    prints=(records.CONSUMER_ROW,),
    listing=True,
)
async def ls(session: Session, stream: StreamName) -> None:
    """List the consumers of a stream.

    PENDING counts messages to deliver, ACK PENDING delivered messages that are not acknowledged.
    """
    infos, silent = await admin.listing((await session.client()).api, check_stream(stream))
    session.show(listing_view(infos, stream))
    if silent:
        session.warn(f"Consumers that do not answer: {quoted(silent)}")


@command(
    "consumer show",
    examples=["kvctl consumer show ORDERS worker", "kvctl consumer show ORDERS worker -o json | jq .ack_floor"],
    see=["consumer ls"],
    prints=(records.CONSUMER,),
    in_pipe="fields",
)
async def show(session: Session, stream: StreamName, consumer: ConsumerName) -> None:
    """Show a consumer's state and settings."""
    check_stream(stream), check_consumer(consumer)
    session.show(consumer_view(await admin.info((await session.client()).api, stream, consumer)))


@command(
    "consumer add",
    examples=[
        "kvctl consumer add ORDERS worker --filter 'orders.new.>' --ack-wait 1m",
        "kvctl consumer add ORDERS tail --deliver-policy new --ack-policy none --ephemeral",
        "kvctl consumer add ORDERS --config worker.yaml --set max_waiting=64",
    ],
    see=["consumer consume", "consumer edit"],
    prints=(records.CONSUMER_CHANGE, records.ANY),
)
async def add(
    session: Session,
    stream: StreamName,
    consumer: NewConsumer = None,
    *,
    given: Annotated["config_text.Config", _options()],
    config: ConfigFile = None,
    settings: Settings = None,
    dry_run: DryRun = False,
) -> None:
    """Create a consumer.

    By default a consumer delivers all messages from the first one, and waits 30 seconds for each acknowledgement. The
    configuration is the server's own JSON, from a file, then from --set, then from the other options.

    If the consumer already exists with this configuration, nothing changes. With another configuration the command
    fails and shows the differences. A generated name is printed.
    """
    durable = given.pop("durable", None)
    given = await _started_by_server(session, check_stream(stream), given)
    asked = await dated_by_server(session, apply_settings(session, {}, config, settings, config_text.CONSUMER), stream)
    wanted = {"ack_policy": "explicit"} | _merged(asked, given)
    await _add(session, check_stream(stream), consumer, wanted, durable=durable, dry_run=dry_run)


@command(
    "consumer edit",
    examples=[
        "kvctl consumer edit ORDERS worker --ack-wait 2m",
        "kvctl consumer edit ORDERS worker --set max_ack_pending=100 --dry-run",
    ],
    see=["consumer show", "consumer add"],
    prints=(records.CONSUMER_EDIT, records.DIFFERENCE),
)
async def edit(
    session: Session,
    stream: StreamName,
    consumer: ConsumerName,
    *,
    given: Annotated["config_text.Config", _options("durable")],
    config: ConfigFile = None,
    settings: Settings = None,
    dry_run: DryRun = False,
) -> None:
    """Change settings of a consumer.

    Only the given settings are changed. The difference is shown first. The consumer keeps its position; servers refuse
    to change its start position and acknowledgement policy.
    """
    if not (given or config or settings):
        raise UsageError("Nothing to change", hint="Set a field, as in `--ack-wait 1m` or `--set max_deliver=5`")
    check_stream(stream), check_consumer(consumer)
    given = await _started_by_server(session, stream, given)
    asked = apply_settings(session, {}, config, None, config_text.CONSUMER)

    def change(before: "config_text.Config") -> "config_text.Config":
        return _merged(apply_settings(session, {**before, **asked}, None, settings, config_text.CONSUMER), given)

    await _edit(session, stream, consumer, change, dry_run=dry_run)


@command(
    "consumer delete",
    examples=["kvctl consumer delete ORDERS worker"],
    see=["consumer ls", "consumer pause"],
    prints=(records.CONSUMER_CHANGE, records.CONSUMER_DELETION_PLAN, records.CHANGE),
)
@deletes("consumer")
async def delete(
    session: Session, stream: StreamName, consumer: ConsumerName, yes: Unasked = False, dry_run: DryRun = False
) -> None:
    """Delete a consumer with its position.

    The stream keeps its messages, except with retention `interest`.
    """
    check_stream(stream), check_consumer(consumer)
    target = admin.target((await session.client()).api, stream, consumer)
    row: dict[str, Any] = {"stream": stream, "name": consumer}
    if dry_run:
        info = await target.read()
        waiting, unacknowledged = info["num_pending"], info["num_ack_pending"]
        effect = f"drops its position: {counted(waiting, 'message')} not delivered, {unacknowledged:,} not acknowledged"
        row |= {"ack_pending": unacknowledged, "pending": waiting}
        show_deletion(session, f"consumer `{consumer}` of stream `{stream}`", row, effect, name="name")
        return
    await edits.delete(target)
    show_result(session, {**row, "changed": True}, f"Deleted consumer `{consumer}` of stream `{stream}`", name="name")


@command(
    "consumer pause",
    examples=[
        "kvctl consumer pause ORDERS worker --for 1h",
        "kvctl consumer pause ORDERS worker --until 2026-12-24T18:00:00Z",
    ],
    see=["consumer resume"],
    prints=(records.CONSUMER_PAUSE,),
)
async def pause(
    session: Session,
    stream: StreamName,
    consumer: ConsumerName,
    lasting: Annotated[timedelta | None, duration("--for", "Length of the pause")] = None,
    until: Annotated[int | None, moment("--until", "End of the pause")] = None,
    dry_run: DryRun = False,
) -> None:
    """Pause the deliveries of a consumer.

    Pulls wait during the pause and receive heartbeats. Requires nats-server 2.11 or later.
    """
    if (lasting is None) == (until is None):
        raise UsageError("Give either `--for DURATION` or `--until TIME`")
    check_stream(stream), check_consumer(consumer)
    now = (await streams.ServerClock.read((await session.client()).api, stream)).now_ns()
    end = until if until is not None else now + duration_ns(lasting or timedelta())
    if end <= now:
        raise UsageError("The end of the pause is in the past")
    await _pause(session, stream, consumer, end, dry_run=dry_run)


@command(
    "consumer resume",
    examples=["kvctl consumer resume ORDERS worker"],
    see=["consumer pause"],
    prints=(records.CONSUMER_PAUSE,),
)
async def resume(session: Session, stream: StreamName, consumer: ConsumerName, dry_run: DryRun = False) -> None:
    """End a consumer's pause."""
    await _pause(session, stream, consumer, None, dry_run=dry_run)


async def _add(
    session: Session,
    stream: str,
    consumer: str | None,
    wanted: "config_text.Config",
    *,
    durable: bool | None,
    dry_run: bool,
) -> None:
    named = consumer if consumer is not None else wanted.get("durable_name") or wanted.get("name")
    if durable and named is None:
        raise UsageError("A durable consumer needs a name", hint="Use `kvctl consumer add STREAM CONSUMER`")
    name = _name(
        wanted, admin.new_name() if named is None else named, named is not None if durable is None else durable
    )
    target = admin.target((await session.client()).api, stream, name)
    if dry_run:
        if await edits.existing(target, wanted) is None:
            show_config(session, f"consumer `{name}` of stream `{stream}`", wanted, schema=config_text.CONSUMER)
            return
        created = False
    else:
        made, created = await edits.create(target, wanted)
        if created and "opt_start_time" in made["config"]:
            await _warn_if_late(session, stream, made)
    if named is None and session.options.output is None and not session.terminal.is_terminal:
        session.write(f"{name}\n".encode())
        return
    row = {"stream": stream, "name": name}
    show_creation(session, f"consumer `{name}` of stream `{stream}`", row, created=created, name="name")


async def _warn_if_late(session: Session, stream: str, made: "config_text.Config") -> None:
    """Warn if the server begins a new consumer after messages that it should deliver.

    Servers do (2.15) with several filters, and beside a file with nothing but records of deletions.
    """
    api, config, begun = (await session.client()).api, made["config"], made["delivered"]["stream_seq"]
    first = await multi_get.first_since(api, stream, parse_time(config["opt_start_time"]))
    for subject in config.get("filter_subjects") or [config.get("filter_subject") or ">"]:
        message = await direct_get.from_leader(api, stream, seq=first, next_by_subj=subject)
        if message is not None and message.sequence <= begun:
            session.warn(
                f"The server begins consumer `{made['name']}` after message {begun}, but message {message.sequence} is "
                f"not older than the start time: recreate it with `--start-seq {first}`"
            )
            return


async def _edit(
    session: Session,
    stream: str,
    consumer: str,
    change: Callable[["config_text.Config"], "config_text.Config"],
    *,
    dry_run: bool,
) -> None:
    target = admin.target((await session.client()).api, stream, consumer)
    info = await target.read()
    before = info["config"]
    after = await dated_by_server(session, change(config_text.copied(before)), stream)
    after |= {name: before[name] for name in ("name", "durable_name") if name in before}
    differing = config_diff.differences(before, after, config_text.CONSUMER)
    what, row = f"consumer `{consumer}`", {"stream": stream, "name": consumer}
    apply = partial(edits.edit, target, info, after)
    await flows.edit(session, what, row, differing, apply, dry_run=dry_run, name="name")


async def _pause(session: Session, stream: str, consumer: str, end_ns: int | None, *, dry_run: bool) -> None:
    check_stream(stream), check_consumer(consumer)
    client = await session.client()
    handle = client.jetstream.stream(stream).consumer(consumer)
    version = await streams.version(client.api, stream)
    if version < (2, 11):
        await handle.info()
        raise KvctlError(
            f"nats-server {'.'.join(map(str, version))} cannot pause consumers", hint="Use nats-server 2.11 or later"
        )
    if dry_run:
        await handle.info()
    elif end_ns is None:
        await handle.resume()
    else:
        await handle.pause(end_ns)
    until = format_time(end_ns) if end_ns is not None else None
    shown = f"{until[:19]}Z" if until else ""
    row = {"stream": stream, "name": consumer, "paused": until is not None, "until": until}
    if dry_run:
        paused = [("paused", f"until {shown}" if shown else "no")]
        show_planned(
            session, "change", f"consumer `{consumer}` of stream `{stream}`", document(row, name="name"), paused
        )
        return
    text = f"Paused consumer `{consumer}` until {shown}" if shown else f"Resumed consumer `{consumer}`"
    show_result(session, row, text, name="name")


async def _started_by_server(session: Session, stream: str, given: "config_text.Config") -> "config_text.Config":
    """Return the fields with the start as text; a relative one is resolved against the server's clock."""
    if "opt_start_time" not in given:
        return given
    return {**given, "opt_start_time": format_time(await by_server(session, stream, given["opt_start_time"]) or 0)}


def _merged(config: "config_text.Config", given: "config_text.Config") -> "config_text.Config":
    """Merge the options into the configuration; filters and starts replace earlier ones."""
    merged, given = dict(config), dict(given)
    if filters := given.pop("filters", None):
        if "" in filters:
            raise UsageError("A filter must not be empty")
        merged = {name: value for name, value in merged.items() if name not in ("filter_subject", "filter_subjects")}
        merged |= {"filter_subject": filters[0]} if len(filters) == 1 else {"filter_subjects": list(filters)}
    for start, policy in (("opt_start_seq", "by_start_sequence"), ("opt_start_time", "by_start_time")):
        if start in given:
            if given.get("deliver_policy", policy) != policy:
                raise UsageError(f"A start cannot be combined with `--deliver-policy {given['deliver_policy']}`")
            given["deliver_policy"] = policy
    return merged | given


def _name(wanted: "config_text.Config", name: str, durable: bool) -> str:
    """Set the name in the configuration, durable or ephemeral, and return it. Raises UsageError."""
    wanted["name"] = check_consumer(name)
    wanted.pop("durable_name", None)
    if durable:
        wanted["durable_name"] = name
    return name


def listing_view(infos: Iterable[dict[str, Any]], stream: str) -> View:
    """Build the view of a stream's consumers."""
    shown = columns(
        "name filters deliver_policy ack_policy pending ack_pending paused created description",
        deliver_policy="Delivers",
        ack_policy="Acks",
        paused=Column("paused", style=lambda paused: "yellow" if paused else ""),
    )
    rows = [_summary(info) for info in infos]
    empty = f"No consumers; create one with `kvctl consumer add {stream} NAME`"
    return View(columns=shown, rows=rows, empty=empty)


def consumer_view(info: dict[str, Any]) -> View:
    """Build the view of one consumer."""
    row = consumer_row(info)
    peers = View(columns=_PEERS, rows=(row["cluster"] or {}).get("replicas", []))
    shown = "name durable_name description deliver_policy ack_policy filter_subject filter_subjects"
    settings = settings_columns(row["config"], config_text.CONSUMER, shown)
    groups = (_GENERAL, _FILTERS, _PROGRESS, _WAITING, (*_DELIVERY, *settings), _LIVES)
    return document(row, tsv=CONSUMER.columns, title=_title, groups=groups, sections=[("Servers", peers)])


def _title(row: Row) -> Line:
    paused = "paused" if row["paused"] else None
    return title_in(row, f"consumer of {row['stream']}", "durable" if row["durable"] else "ephemeral", paused)


def consumer_row(info: dict[str, Any]) -> dict[str, Any]:
    """Return a consumer as a JSON object."""
    cluster = info.get("cluster") or {}
    return {
        **_summary(info),
        "delivered": _position(info["delivered"]),
        "ack_floor": _position(info["ack_floor"]),
        "pause_remaining": duration_seconds(duration_from_ns(info.get("pause_remaining", 0))) or None,
        "push_bound": bool(info.get("push_bound")),
        "cluster": {
            "name": cluster.get("name") or None,
            "leader": cluster.get("leader") or None,
            "replicas": [
                {"name": peer["name"], "current": bool(peer.get("current")), "lag": peer.get("lag", 0)}
                for peer in cluster.get("replicas") or []
            ],
        }
        if cluster
        else None,
        "config": info["config"],
    }


def _summary(info: dict[str, Any]) -> dict[str, Any]:
    config = info["config"]
    one = config.get("filter_subject")
    return {
        "stream": info["stream_name"],
        "name": info["name"],
        "durable": bool(config.get("durable_name")),
        "filters": [one] if one else config.get("filter_subjects") or [],
        "deliver_policy": config.get("deliver_policy", "all"),
        "ack_policy": config.get("ack_policy", "none"),
        "pending": info.get("num_pending", 0),
        "ack_pending": info.get("num_ack_pending", 0),
        "redelivered": info.get("num_redelivered", 0),
        "waiting": info.get("num_waiting", 0),
        "paused": bool(info.get("paused")),
        "created": format_time(parse_utc(info["created"])),
        "description": config.get("description") or None,
    }


def _position(position: dict[str, Any]) -> dict[str, Any]:
    last = position.get("last_active")
    return {
        "sequence": position.get("stream_seq", 0),
        "consumer_sequence": position.get("consumer_seq", 0),
        "last_active": format_time(parse_utc(last)) if last else None,
    }


def _position_text(position: dict[str, Any]) -> str:
    active = f", {age_text(position['last_active'])}" if position["last_active"] else ""
    return f"sequence {position['sequence']:,}{active}"


_GENERAL = columns("description", description="")
_FILTERS = columns("filters")
_PROGRESS = columns(
    "delivered ack_floor",
    delivered=Column("delivered", "delivered up to", text=_position_text),
    ack_floor=Column("ack_floor", "acknowledged up to", text=_position_text),
)
_WAITING = columns(
    "pending ack_pending redelivered waiting pause_remaining",
    redelivered=Column("redelivered", text=number_text),
    waiting=Column("waiting", "pulls waiting", text=number_text),
    pause_remaining=Column("pause_remaining", "paused for", text=lambda seconds: duration_text(round(seconds))),
)
_DELIVERY = columns("deliver_policy ack_policy", deliver_policy="delivers", ack_policy="acks")
_LIVES = (LEADER, FIELDS["created"])
_PEERS = columns("name current lag")
