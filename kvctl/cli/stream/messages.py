"""`kvctl stream subjects`, `get` and `delete-message` (ADR-31)."""

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Annotated, Any

from kvctl.cli.app.command import command
from kvctl.cli.app.options import DryRun, Force, argument, flag, moment, number, option, size
from kvctl.cli.app.session import Session
from kvctl.cli.flows import show_planned, show_result
from kvctl.cli.keys.arguments import Encoding
from kvctl.cli.records import MESSAGE_DELETION, STORED_MESSAGE, SUBJECT
from kvctl.cli.stream.message_rows import Rows, stored_view
from kvctl.cli.stream.options import StreamName, by_server, check_stream, named
from kvctl.errors import KvctlError, NoResponders, NotFoundError, UsageError
from kvctl.jetstream import api as jetstream_api
from kvctl.jetstream import direct_get, multi_get, streams
from kvctl.kv import stream_kind
from kvctl.render.fields import columns
from kvctl.render.view import Row, View, document

Sequence_ = Annotated[int | None, argument("SEQ", "Sequence of the message, or of the first one")]


@command(
    "stream subjects",
    examples=["kvctl stream subjects ORDERS", "kvctl stream subjects ORDERS 'orders.new.>' -o json"],
    see=["stream show"],
    prints=(SUBJECT,),
    listing=True,
)
async def subjects(
    session: Session, stream: StreamName, subject: Annotated[str, argument("FILTER", "Filter of subjects")] = ">"
) -> None:
    """List the subjects of a stream with their message counts."""
    check_stream(stream)
    if not subject:
        raise UsageError("The filter must not be empty")
    api = (await session.client()).api
    with named(stream):
        found = await streams.subjects(api, stream, subject)
    rows = [{"subject": name, "messages": found[name]} for name in sorted(found)]
    session.show(View(columns=columns("subject messages"), rows=rows, name="subject", empty="No messages"))


@command(
    "stream get",
    examples=[
        "kvctl stream get ORDERS 42",
        "kvctl stream get ORDERS --last-for orders.new.7",
        "kvctl stream get ORDERS 100 --batch 50 --next-for 'orders.>' -o ndjson",
        "kvctl stream get ORDERS --last-of 'orders.>' --up-to-seq 5000",
    ],
    see=["get", "stream subjects"],
    prints=(STORED_MESSAGE,),
)
async def get(
    session: Session,
    stream: StreamName,
    sequence: Sequence_ = None,
    last_for: Annotated[str | None, option("--last-for", "SUBJECT", "Read the last message on a subject")] = None,
    next_for: Annotated[
        str | None, option("--next-for", "SUBJECT", "Read the next message on a subject, from SEQ or the first")
    ] = None,
    start_time: Annotated[int | None, moment("--start-time", "Read the first message at or after this time")] = None,
    batch: Annotated[int | None, number("--batch", "Maximum number of messages")] = None,
    max_bytes: Annotated[int | None, size("--max-bytes", "Maximum size of all messages")] = None,
    last_of: Annotated[
        list[str] | None, option("--last-of", "SUBJECT", "Read the last message of each matching subject; repeatable")
    ] = None,
    up_to_seq: Annotated[int | None, number("--up-to-seq", "Read --last-of as of this sequence")] = None,
    up_to_time: Annotated[int | None, moment("--up-to-time", "Read --last-of as of this time, inclusive")] = None,
    leader: Annotated[bool, flag("--leader", "Read from the leader, which is always current")] = False,
    encoding: Encoding = None,
) -> None:
    """Read messages by sequence, subject or time.

    Without --leader any replica or mirror may answer; STREAM names the one that did. Several messages at once need a
    stream with direct get, and cannot be read with --leader. One message of a stream without direct get is read from
    its leader. In JSON one message is an object, several are an array.

    PENDING is the number of matching messages after this one. LAST_SEQUENCE is the sequence of the message before it.
    UP_TO_SEQUENCE is the sequence at which --last-of was read. Each is shown if the server reports it.
    """
    check_stream(stream)
    request = direct_get.DirectRequest(
        sequence=sequence, last_for=last_for, next_for=next_for, start_time_ns=start_time, batch=batch,
        max_bytes=max_bytes, last_of=tuple(last_of or ()), up_to_sequence=up_to_seq, up_to_time_ns=up_to_time,
    )  # fmt: skip
    if "" in (last_for, next_for, *(last_of or ())):
        raise UsageError("A subject must not be empty")
    _check(request, leader)
    request = await _dated(session, stream, request)
    api = (await session.client()).api
    rows = Rows(encoding, table=session.output == "table")
    if request.many:
        view = stored_view(single=False, empty="No messages")
        await session.stream(view, _many(api, stream, request, rows))
        return
    row = await _one(api, stream, request, leader, rows)
    session.show(stored_view(single=True, rows=[row]))


@command(
    "stream delete-message",
    examples=["kvctl stream delete-message ORDERS 42", "kvctl stream delete-message ORDERS 42 --no-erase"],
    see=["stream get", "stream purge"],
    prints=(MESSAGE_DELETION,),
    forces=lambda: (stream_kind.FOREIGN_KIND,),
)
async def delete_message(
    session: Session,
    stream: StreamName,
    sequence: Annotated[int, argument("SEQ", "Sequence of the message")],
    erase: Annotated[bool, flag("--erase/--no-erase", "Overwrite the message on disk")] = True,
    dry_run: DryRun = False,
    force: Force = None,
) -> None:
    """Delete one message.

    The message is overwritten on disk, unless --no-erase is given. Mirrors and aggregates keep their copies. The stream
    of a table or a repository is refused without --force foreign-kind.
    """
    check_stream(stream)
    if sequence < 1:
        raise UsageError("Sequences count from 1")
    api = (await session.client()).api
    with named(stream):
        stream_kind.refuse((await streams.info(api, stream))["config"], force or ())
    row = {"stream": stream, "sequence": sequence}
    if not dry_run:
        await streams.delete_message(api, stream, sequence, erase=erase)
    elif await direct_get.from_leader(api, stream, seq=sequence) is None:
        raise NotFoundError(f"Stream `{stream}` has no message {sequence}")
    what = f"message {sequence} of stream `{stream}`"
    if dry_run:
        show_planned(session, "delete", what, document(row))
    else:
        show_result(session, row, f"Deleted {what}")


def _check(request: "direct_get.DirectRequest", leader: bool) -> None:
    request.check()
    if leader and request.many:
        raise UsageError(
            f"`--leader` cannot be combined with `{'--last-of' if request.last_of else '--batch'}`",
            hint="Only direct get reads several messages at once; read the last one of a subject with `--last-for`",
        )


async def _one(
    api: "jetstream_api.Api", stream: str, request: "direct_get.DirectRequest", leader: bool, rows: Rows
) -> Row:
    found = None
    if not leader:
        try:
            found = await direct_get.get(api, stream, await multi_get.by_sequence(api, stream, request, leader=False))
        except (NoResponders, direct_get.NotUnderstood):
            leader = True
    if leader:
        with named(stream):
            found = await multi_get.one(api, stream, request)
    if found is None:
        raise NotFoundError(f"No message in stream `{stream}` matches")
    return rows.stored(found, _position(found, None))


async def _dated(session: Session, stream: str, request: "direct_get.DirectRequest") -> "direct_get.DirectRequest":
    """Resolve relative times against the server's clock."""
    return request._replace(
        start_time_ns=await by_server(session, stream, request.start_time_ns),
        up_to_time_ns=await by_server(session, stream, request.up_to_time_ns),
    )


async def _many(
    api: "jetstream_api.Api", stream: str, request: "direct_get.DirectRequest", rows: Rows
) -> AsyncIterator[Sequence[Row]]:
    try:
        async with aclosing(multi_get.read(api, stream, request)) as pages:
            async for page in pages:
                yield [rows.stored(message, _position(message, page.up_to_sequence)) for message in page.messages]
    except NoResponders:  # no direct get, or no such stream
        with named(stream):
            config = (await streams.info(api, stream))["config"]
        if config.get("allow_direct"):
            raise
        raise KvctlError(
            f"Stream `{stream}` does not allow direct get, which reads of several messages need",
            hint=f"Read one message at a time, or allow it: `kvctl stream edit {stream} --set allow_direct=true`",
        ) from None


def _position(message: Any, up_to: int | None) -> dict[str, Any]:
    return {"pending": message.pending, "last_sequence": message.last_sequence, "up_to_sequence": up_to}
