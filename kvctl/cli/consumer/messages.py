"""`kvctl consumer next`, `fetch` and `consume`: print messages, or pass them to a command."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from datetime import timedelta
from typing import Annotated, Any

import kvctl
from kvctl.cli import exec
from kvctl.cli.app.command import command
from kvctl.cli.app.options import argument, duration, flag, live, number, one_of, option, size
from kvctl.cli.app.session import Session
from kvctl.cli.keys.arguments import Encoding
from kvctl.cli.records import DELIVERED_MESSAGE
from kvctl.cli.stream.message_rows import Rows, delivered_view
from kvctl.cli.stream.options import ConsumerName, StreamName, check_consumer, check_stream
from kvctl.errors import NoResponders, NoServer, ReadOnly, ServerError, UnreachableError, UsageError, WaitExpired
from kvctl.jetstream.consumers import admin, pull
from kvctl.jetstream.consumers import consume as consumers_consume
from kvctl.jetstream.consumers import fetch as consumers_fetch
from kvctl.render.view import Row

Batches = AsyncGenerator[list["kvctl.Message"], None]

HEARTBEAT = timedelta(seconds=5)
"""Interval of server heartbeats while consuming; silence of twice this is an error."""

Ack = Annotated[bool, flag("--ack/--no-ack", "Acknowledge printed messages, or let them be redelivered")]
Expires = Annotated[timedelta | None, duration("--wait-for", "Maximum time to wait for a message [default: 30s]")]
LongExpires = Annotated[timedelta | None, duration("--wait-for", "Longest wait of a pull, at least 1s [default: 30s]")]
Heartbeat = Annotated[timedelta | None, duration("--idle-heartbeat", "Interval of server heartbeats, 500ms to 30s")]
Run = Annotated[
    str | None, option("--exec", "CMD", "Run CMD, without a shell, for each message; acknowledge on success")
]
SomeConsumer = Annotated[
    str | None,
    argument("CONSUMER", "Name; without one, messages are read in order and no position is kept", live("consumers")),
]
ThresholdMessages = Annotated[
    int | None, option("--threshold-messages", "N", "Messages left when the next pull is sent [default: half]")
]
ThresholdBytes = Annotated[
    int | None, size("--threshold-bytes", "Bytes left when the next pull is sent [default: half]")
]
Filters = Annotated[
    list[str] | None, option("--filter", "SUBJECT", "Read only this subject, without CONSUMER; repeatable")
]
Deliver = Annotated[
    str | None,
    option(
        "--deliver",
        "POLICY",
        "Start position without CONSUMER: `all`, `new` or `last_per_subject`",
        one_of("all", "new", "last_per_subject"),
    ),
]
MaxBytes = Annotated[int | None, size("--max-bytes", "Maximum size, as the server counts it")]


@command(
    "consumer next",
    examples=["kvctl consumer next ORDERS worker", "kvctl consumer next ORDERS worker --no-ack -o json | jq -r .data"],
    see=["consumer fetch", "consumer consume"],
    prints=(DELIVERED_MESSAGE,),
)
async def next_(
    session: Session,
    stream: StreamName,
    consumer: ConsumerName,
    count: Annotated[int | None, number("--count", "Number of messages, one pull each")] = None,
    ack: Ack = True,
    expires: Expires = None,
    idle_heartbeat: Heartbeat = None,
    run: Run = None,
    encoding: Encoding = None,
) -> None:
    """Read the next message.

    The message is acknowledged after it is printed. The command exits with 9 if none arrives in time.
    """
    options = pull.FetchOptions(
        max_messages=1, expires=expires or pull.EXPIRES, idle_heartbeat=idle_heartbeat, no_wait=expires == timedelta()
    )
    handling = await Handling.begin(session, stream, consumer, ack=ack, run=run, encoding=encoding)
    api = (await session.client()).api

    async def batches() -> Batches:
        for _ in range(count or 1):
            found = False
            async for batch in fetched(consumers_fetch.Fetch(api, stream, consumer, options, handling.warn)):
                found = True
                yield batch
            if not found:
                arrived = "is available" if options.no_wait else f"arrived within {options.pull().expires:g}s"
                raise WaitExpired(f"No message {arrived}")

    await handling.handle(batches(), single=count is None)


@command(
    "consumer fetch",
    examples=[
        "kvctl consumer fetch ORDERS worker --max-messages 100",
        "kvctl consumer fetch ORDERS worker --max-bytes 1MB --wait-for 5s -o ndjson",
        "kvctl consumer fetch ORDERS worker --max-messages 10 --no-wait --exec ./handle",
    ],
    see=["consumer next", "consumer consume"],
    prints=(DELIVERED_MESSAGE,),
)
async def fetch(
    session: Session,
    stream: StreamName,
    consumer: ConsumerName,
    max_messages: Annotated[
        int | None, number("--max-messages --count", "Maximum number; this or --max-bytes is required")
    ] = None,
    max_bytes: MaxBytes = None,
    ack: Ack = True,
    expires: Expires = None,
    idle_heartbeat: Heartbeat = None,
    no_wait: Annotated[bool, flag("--no-wait", "Read only available messages, without waiting")] = False,
    run: Run = None,
    encoding: Encoding = None,
) -> None:
    """Read several messages with one pull.

    The command ends when it has the messages or the time is up. Messages are acknowledged as they are printed. Reading
    no message is a success. With --wait-for over 30s the server sends heartbeats; two missed ones are an error.
    """
    options = pull.FetchOptions(
        max_messages=max_messages,
        max_bytes=max_bytes,
        expires=expires or pull.EXPIRES,
        idle_heartbeat=idle_heartbeat,
        no_wait=no_wait or expires == timedelta(),
    )
    handling = await Handling.begin(session, stream, consumer, ack=ack, run=run, encoding=encoding)
    api = (await session.client()).api

    await _warn_of_size(session, stream, consumer, max_bytes)
    await handling.handle(fetched(consumers_fetch.Fetch(api, stream, consumer, options, handling.warn)))


@command(
    "consumer consume",
    examples=[
        "kvctl consumer consume ORDERS worker -o ndjson",
        "kvctl consumer consume ORDERS worker --exec './handle --order'",
        "kvctl consumer consume ORDERS --filter 'orders.new.>' --deliver new",
    ],
    see=["consumer add", "consumer fetch", "watch"],
    prints=(DELIVERED_MESSAGE,),
)
async def consume(
    session: Session,
    stream: StreamName,
    consumer: SomeConsumer = None,
    count: Annotated[int | None, number("--count", "Maximum number of messages")] = None,
    ack: Ack = True,
    max_messages: Annotated[
        int | None, number("--max-messages", "Buffer in messages [default: 500, with --exec 1]")
    ] = None,
    max_bytes: Annotated[int | None, size("--max-bytes", "Buffer in bytes, instead of --max-messages")] = None,
    threshold_messages: ThresholdMessages = None,
    threshold_bytes: ThresholdBytes = None,
    expires: LongExpires = None,
    idle_heartbeat: Heartbeat = None,
    run: Run = None,
    filters: Filters = None,
    deliver: Deliver = None,
    encoding: Encoding = None,
) -> None:
    """Read messages continuously.

    The command continues after server restarts, lost connections and refused pulls, and reports them as warnings. A
    silent server is noticed after two missed heartbeats, 5s apart. Each message is acknowledged after it is printed, so
    a message printed just before kvctl is killed is redelivered. Ctrl-C stops pulling, finishes delivered messages and
    exits with 130; a second Ctrl-C exits immediately. The exit code is 3 if the consumer is deleted.

    Servers up to 2.15 may skip a message at the end of a --max-bytes pull, if the consumer delivers the last message of
    each subject and the stream keeps more. Use --max-messages for such a consumer.

    --exec splits CMD into words as a shell does, but no shell runs it: use `--exec 'sh -c "..."'` for one. Its standard
    input is the message's data. The metadata is in KVCTL_STREAM, KVCTL_CONSUMER, KVCTL_SUBJECT, KVCTL_SEQUENCE,
    KVCTL_CONSUMER_SEQUENCE, KVCTL_DELIVERED, KVCTL_PENDING, KVCTL_TIME, KVCTL_SIZE and KVCTL_HEADERS (JSON). If CMD
    succeeds, the message is acknowledged. If it fails, the message is redelivered after 1s, 2s, 4s and so on, up to 5m.
    While CMD runs, the acknowledgement wait is extended.
    """
    if run is not None and max_messages is None and max_bytes is None:
        max_messages = 1  # messages buffered behind a slow command would be redelivered
    expires = pull.EXPIRES if expires is None else expires
    options = pull.ConsumeOptions(
        max_messages=max_messages,
        max_bytes=max_bytes,
        expires=expires,
        idle_heartbeat=idle_heartbeat or min(HEARTBEAT, pull.default_heartbeat(expires)),
        threshold_messages=threshold_messages,
        threshold_bytes=threshold_bytes,
        count=count,
    )
    if consumer is None:
        handling = await Handling.begin(session, stream, None, ack=False, run=run, encoding=encoding)
        await handling.handle(_ordered(session, stream, filters, deliver, count), endless=True)
        return
    if filters or deliver:
        raise UsageError(
            "`--filter` and `--deliver` cannot be combined with CONSUMER", hint="Change them with `kvctl consumer edit`"
        )
    handling = await Handling.begin(session, stream, consumer, ack=ack, run=run, encoding=encoding)
    await _warn_of_size(session, stream, consumer, max_bytes)
    await _consume(session, stream, consumer, options, handling)


async def _consume(
    session: Session, stream: str, consumer: str, options: "pull.ConsumeOptions", handling: "Handling"
) -> None:
    async with consumers_consume.Consumption(
        (await session.client()).api, stream, consumer, options, handling.warn
    ) as messages:
        work = handling.handle(messages.batches(), endless=True)
        await _until_interrupted(session, work, lambda: handling.drain(messages.drain))


async def _warn_of_size(session: Session, stream: str, consumer: str, max_bytes: int | None) -> None:
    """Warn of a bug in servers up to 2.15: a pull by bytes may skip a subject's last message."""
    if max_bytes is None:
        return
    with suppress(UnreachableError):
        info = await admin.info((await session.client()).api, stream, consumer)
        if info["config"].get("deliver_policy") == "last_per_subject":
            session.warn(
                f"`{consumer}` delivers the last message of each subject: servers may skip some with `--max-bytes`; "
                "use `--max-messages` instead"
            )


async def fetched(fetch: "consumers_fetch.Fetch") -> Batches:
    """Yield a fetch's messages. Raises ServerError if the server ended it before the first one."""
    found = False
    async with fetch, aclosing(fetch.batches()) as source:
        async for batch in source:
            found = True
            yield batch
    if fetch.refusal is not None and not found:
        raise ServerError(
            f"No message arrived: the server ended the pull ({fetch.refusal.code})",
            hint=f"Check the consumer's limits with `kvctl consumer show {fetch.stream} {fetch.consumer}`",
        )


class Handling:
    """Handler of messages: prints and acknowledges them, or passes them to a command."""

    def __init__(self, session: Session, rows: Rows, ack: bool, execution: "exec.MessageExecution | None") -> None:
        self._session = session
        self._rows = rows
        self._ack = ack
        self._execution = execution

    @classmethod
    async def begin(
        cls, session: Session, stream: str, consumer: str | None, *, ack: bool, run: str | None, encoding: str | None
    ) -> "Handling":
        """Create a handler. Raises ReadOnly, UsageError for illegal names and commands that cannot run."""
        check_stream(stream)
        if consumer is not None:
            check_consumer(consumer)
        if ack and session.context.read_only:
            raise ReadOnly("Acknowledging changes the consumer", hint="Use `--no-ack` to read without acknowledging")
        execution = None
        if run is not None:
            execution = exec.MessageExecution(session, run, answers=ack)
            await execution.prepare(stream, consumer)
        return cls(session, Rows(encoding, table=session.output == "table"), ack, execution)

    def warn(self, event: "kvctl.Event") -> None:
        """Print an event as a warning, unless it ends the messages with an error."""
        if not event.final:
            self._session.warn(str(event))

    async def handle(self, batches: Batches, *, single: bool = False, endless: bool = False) -> None:
        """Handle all messages. Raises PartlyDone if a command failed."""
        async with aclosing(batches):
            if self._execution is not None:
                async for batch in batches:
                    for message in batch:
                        await self._execution.run(message)
                await self._flush()
                self._execution.finish()
                return
            if single:
                await self._show_one(batches)
                return
            view = delivered_view(single=False, empty="" if endless else "No messages")
            await self._session.stream(view, self._printed(batches, confirm=not endless), endless=endless)
            await self._flush()

    async def drain(self, drain: Callable[[], Awaitable[None]]) -> None:
        """Finish running commands and start no more."""
        if self._execution is not None:
            self._execution.stopping = True
        await drain()

    async def _show_one(self, batches: Batches) -> None:
        async for batch in batches:
            for message in batch:
                self._session.show(delivered_view(single=True, rows=[self._rows.delivered(message)]))
                if self._ack:
                    await _confirmed(message)

    async def _printed(self, batches: Batches, *, confirm: bool) -> AsyncIterator[Sequence[Row]]:
        async for batch in batches:
            yield [self._rows.delivered(message) for message in batch]
            if self._ack:
                await self._acknowledge(batch[:-1] if confirm else batch)
                if confirm:
                    await _confirmed(batch[-1])

    async def _acknowledge(self, batch: "list[kvctl.Message]") -> None:
        try:
            for message in batch:
                await message.ack()
        except NoServer:
            self._session.warn("The connection was lost before messages were acknowledged; they will be redelivered")

    async def _flush(self) -> None:
        if self._ack:
            await (await self._session.client()).connection.flush()


async def _confirmed(message: "kvctl.Message") -> None:
    """Acknowledge a message and wait for the confirmation. Raises PermissionDenied, RequestTimeout."""
    with suppress(NoResponders):  # the consumer wants no acknowledgements
        await message.double_ack()


async def _ordered(
    session: Session, stream: str, filters: list[str] | None, deliver: str | None, count: int | None
) -> Batches:
    """Yield all messages in order, from an ephemeral consumer without acknowledgements."""
    client = await session.client()
    policy = (deliver or "all").replace("-", "_")
    left = count
    reading = client.jetstream.stream(stream).read(*(filters or ()), deliver=policy, follow=True)
    async with reading, aclosing(reading.batches()) as batches:
        async for batch in batches:
            yield batch[:left]
            left = None if left is None else left - len(batch)
            if left is not None and left <= 0:
                return


async def _until_interrupted(session: Session, work: Awaitable[None], drain: Callable[[], Awaitable[Any]]) -> None:
    """Await the work; when a signal cancels us, let it drain first."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            session.note("Finishing delivered messages; interrupt again to exit immediately")
            await drain()
            await task
        raise
    except BaseException:
        task.cancel()
        raise
