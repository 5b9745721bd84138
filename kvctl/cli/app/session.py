"""Session of a command: its options, a client that is opened when first needed, its output, and its end by a signal."""

import asyncio
import concurrent.futures
import logging
import os
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext, suppress
from functools import cached_property
from threading import Thread
from types import FrameType
from typing import Any, TypeVar

import kvctl
from kvctl import contexts
from kvctl.cli.app.options import SharedValues
from kvctl.errors import CancelledByUser, UsageError
from kvctl.render import cards, formats, text_table
from kvctl.render import progress as render_progress
from kvctl.render.escapes import escape, utf8
from kvctl.render.terminal import OutputClosed, Terminal
from kvctl.render.view import Row, View, ordered, picked
from kvctl.suggest import did_you_mean

T = TypeVar("T")
INPUT_BYTES = 128 << 20
"""Maximum size of an input: twice the largest message that a server can be configured to accept."""
READER_CHECK_S = 0.2
"""Seconds between checks that somebody reads the output."""


class Interruption(BaseException):
    """Error for a command ended by a signal; the exit code is 128 plus its number."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


class Session:
    """Run of one command."""

    def __init__(self, options: SharedValues, terminal: Terminal) -> None:
        self.options = options
        self.terminal = terminal
        self.output = options.output or ("table" if terminal.is_terminal else options.in_pipe)
        """Requested output format, by default `table` on a terminal, else that of the command in a pipe."""
        self.aligned = self.output == "table" and bool(options.columns)
        """The records of tsv are printed as a table, because `--columns` chooses its columns."""
        if self.aligned:
            self.output = "tsv"
        self._resources = AsyncExitStack()
        self._client: kvctl.Client | None = None
        self._waited = False
        self._writing: concurrent.futures.ThreadPoolExecutor | None = None

    @property
    def interactive(self) -> bool:
        """Return True if stdin and stderr are terminals, so that prompts are possible."""
        return self.terminal.interactive

    @cached_property
    def context(self) -> "kvctl.Context":
        """Return the connection settings, from flags, then the environment, then context files."""
        context = contexts.resolve(self.options.connection_flags(), os.environ)
        for warning in context.warnings:
            self.warn(warning)
        return context

    async def client(self) -> "kvctl.Client":
        """Return the client of `context`, connected at the first call and closed at the end of the session."""
        if self._client is None:
            self._client = await self.connect(self.context)
        return self._client

    async def connect(self, context: "kvctl.Context") -> "kvctl.Client":
        """Connect a further client, for commands on two contexts; closed at the end of the session."""
        client = await self._resources.enter_async_context(kvctl.connect(context))
        client.connection.warn = self.warn
        if self.terminal.speaks and not self.options.quiet:
            client.connection.waits = self._note_wait
        if self.options.verbose:
            client.connection.trace = self.terminal.trace
        return client

    def _note_wait(self, reason: str) -> None:
        """Say once what a command waits for."""
        if not self._waited:
            self._waited = True
            self.note(f"Waiting for JetStream: {reason}")

    def at_end(self, callback: Callable[[], None]) -> None:
        """Call a function when the session is closed, before its connections are."""
        self._resources.callback(callback)

    async def close(self) -> None:
        """Close all connections."""
        await self._resources.aclose()

    def show(self, view: View) -> None:
        """Print a view whose rows are in memory, in the requested format."""
        every = list(view.rows)
        rows = every if view.single else self.listed(view._replace(rows=every))
        if not rows and view.empty:
            self.note(view.empty)
        writer = self._writer(view, complete=True)
        data = formats.render(writer, rows)
        if data:
            self.write(data)
        self._note_hidden(writer)
        if len(every) > len(rows):
            self.note(f"Not listed: {len(every) - len(rows):,} more")

    def listed(self, view: View) -> list[Row]:
        """Return the rows that `--sort` and `--limit` leave of a listing."""
        rows = ordered(view, self.options.sort) if self.options.sort else list(view.rows)
        return rows[: self.options.limit]

    def report(self, report: "cards.TextReport") -> None:
        """Print a report as text, in a pipe without bars."""
        width = self.terminal.width if self.terminal.is_terminal else None
        self.write(utf8(cards.report_text(report, width=width, color=self.terminal.colored)))

    def paragraphs(self, text: str) -> None:
        """Print lines of text with their colours, on a terminal folded at spaces."""
        if self.terminal.is_terminal:
            text = cards.folded(text, width=self.terminal.width, color=self.terminal.colored)
        self.write(utf8(text))

    async def stream(self, view: View, batches: AsyncIterable[Sequence[Row]], *, endless: bool = False) -> None:
        """Print batches of rows as they come, and take the next batch when the last one is written.

        For endless output, json is ndjson, because an array would never be closed.
        """
        writer = self._writer(view, endless=endless)
        count = 0

        async def chunks() -> AsyncIterator[bytes]:
            nonlocal count
            yield writer.begin()
            async with _closing(batches) as source:
                async for batch in source:
                    count += len(batch)
                    yield writer.rows(batch)
            yield writer.end()

        await self.stream_bytes(chunks())
        self._note_hidden(writer)
        if not count and view.empty:
            self.note(view.empty)

    async def stream_bytes(self, chunks: AsyncIterable[bytes]) -> None:
        """Print chunks of bytes unchanged, and take the next chunk when the last one is written.

        Raises OutputClosed when the reader leaves, also while the next chunk is awaited.
        """
        async with self._while_read(), _closing(chunks) as source:
            async for chunk in source:
                await self._write_aside(chunk)

    @asynccontextmanager
    async def _while_read(self) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        check: asyncio.TimerHandle | None = None

        def look() -> None:
            nonlocal check
            if self.terminal.reader_left:
                limit.reschedule(loop.time())
            else:
                check = loop.call_later(READER_CHECK_S, look)

        try:
            async with asyncio.timeout(None) as limit:
                look()
                try:
                    yield
                finally:
                    if check is not None:
                        check.cancel()
        except TimeoutError:
            if limit.expired():
                raise OutputClosed from None
            raise

    def write(self, data: bytes) -> None:
        """Print bytes unchanged."""
        with self.terminal.blocking():
            self.terminal.write(data)

    def page(self, text: str) -> None:
        """Print a long text for people, on a terminal through a pager."""
        with self.terminal.blocking():
            self.terminal.page(text)

    def value(self, data: bytes) -> None:
        """Print a value: its exact bytes in a pipe, escaped and with a newline on a terminal."""
        if self.terminal.is_terminal:
            text = escape(data.decode("utf-8", "surrogateescape"), keep="\n\t")
            data = text.encode() + (b"" if text.endswith("\n") else b"\n")
        self.write(data)

    def result(self, text: str) -> None:
        """Print the result of a command as a sentence, on a terminal and in a pipe, never with `-q`."""
        with self.terminal.blocking():
            self.terminal.result(text)

    def note(self, text: str, *, always: bool = False) -> None:
        """Print a note on a terminal's stderr, with `always` in pipes too, never with `-q`."""
        self.terminal.note(text, always=always)

    def warn(self, text: str) -> None:
        """Print a warning on stderr."""
        self.terminal.warn(text)

    async def confirm(
        self,
        question: str,
        *,
        yes: bool = False,
        typed_name: str | None = None,
        confirmed: str | None = None,
        hint: str | None = None,
    ) -> None:
        """Ask before destruction: y/N, or for `typed_name` to be typed; `confirmed` is the value of `--confirm`.

        Connections stay alive during the prompt. Raises CancelledByUser, or UsageError without a terminal, for a name
        with the hint.
        """
        asked = self.terminal.question(question, yes=yes, typed_name=typed_name, confirmed=confirmed, hint=hint)
        if asked is not None and not asked.accepts(await in_thread(lambda: self.terminal.answer(asked.prompt))):
            raise CancelledByUser("Cancelled")

    def progress(self, what: str, total: int | None = None, *, unit: str = "") -> "render_progress.Progress":
        """Show progress on a terminal's stderr after half a second: `with session.progress("Copying keys") as bar:`."""
        return render_progress.Progress(what, total, unit=unit, enabled=self.terminal.speaks and not self.options.quiet)

    def read_input(self, file: str, *, missing: str | None = None) -> bytes:
        """Read a file, `-` for standard input. Raises UsageError, with a near name or `missing` as its hint.

        A signal ends the wait for a pipe.
        """
        if file == "-" and sys.stdin is None:
            raise UsageError("Standard input is closed")
        try:
            with self.terminal.blocking(), nullcontext(sys.stdin.buffer) if file == "-" else open(file, "rb") as stream:
                content = stream.read(INPUT_BYTES + 1)
        except OSError as error:
            folder, name = os.path.split(file)
            near = os.listdir(folder or ".") if os.path.isdir(folder or ".") else []
            hint = did_you_mean(name, near, otherwise=missing) if isinstance(error, FileNotFoundError) else None
            raise UsageError(f"Cannot read `{file}`: {error.strerror}", hint=hint) from None
        if len(content) > INPUT_BYTES:
            raise UsageError(f"`{file}` is larger than {INPUT_BYTES >> 20} MiB")
        return content

    def _writer(self, view: View, *, complete: bool = False, endless: bool = False) -> "formats.Writer":
        """Return the writer of rows that are streamed, or with `complete` of rows that are all known."""
        terminal = self.terminal.is_terminal
        if self.options.columns:
            view = picked(view, self.options.columns)
        if self.output == "table" or self.aligned:
            view = view._replace(single=view.single and not self.aligned)
            width = self.terminal.width if terminal else None
            return text_table.table_writer(view, width=width, color=self.terminal.colored, complete=complete)
        if self.output == "tsv":
            return formats.TsvWriter(view, terminal=terminal, header=self.options.header)
        return formats.WRITERS["ndjson" if endless and self.output == "json" else self.output](view, terminal=terminal)

    def _note_hidden(self, writer: "formats.Writer") -> None:
        hidden = getattr(writer, "hidden", ())
        if hidden:
            self.note(f"Hidden: {', '.join(hidden)}. Widen the terminal, or use `--columns`")

    async def _write_aside(self, data: bytes) -> None:
        """Write in a thread, so that a stalled reader blocks only the output."""
        if not data:
            return
        if self._writing is None:
            self._writing = concurrent.futures.ThreadPoolExecutor(1, "stdout")
        await asyncio.get_running_loop().run_in_executor(self._writing, self.terminal.write, data)


def in_thread(work: Callable[[], T]) -> "asyncio.Future[T]":
    """Run blocking work in a daemon thread, which cannot delay the exit; return its result."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(error: BaseException | None, result: Any = None) -> None:
        if not future.done():
            future.set_exception(error) if error else future.set_result(result)

    def run() -> None:
        outcome: tuple[BaseException | None, Any]
        try:
            outcome = (None, work())
        except BaseException as error:
            outcome = (error, None)
        with suppress(RuntimeError):  # the loop may have ended
            loop.call_soon_threadsafe(settle, *outcome)

    Thread(target=run, name="aside", daemon=True).start()
    return future


@asynccontextmanager
async def _closing(source: AsyncIterable[T]) -> AsyncIterator[AsyncIterable[T]]:
    """Close an asynchronous generator at the end of the block, while its connection is still open."""
    try:
        yield source
    finally:
        if isinstance(source, AsyncGenerator):
            await source.aclose()


# -- signals -----------------------------------------------------------------------------------------------


def run_until_signal(session: Session, work: Coroutine[Any, Any, int | None]) -> int | None:
    """Run the command, close its session and return the result.

    SIGINT, SIGTERM and SIGHUP cancel the command so that it can clean up; a second signal ends it immediately. So does
    a computation that keeps the loop from running.
    """
    interrupts = _Interrupts(session.terminal)
    with asyncio.Runner() as runner:
        _keep_quiet(runner.get_loop(), session.terminal)
        try:
            return runner.run(interrupts.guard(session, work))
        except asyncio.CancelledError:
            raise session.terminal.interruption or AssertionError("cancelled without a signal") from None
        finally:
            interrupts.restore()


def _keep_quiet(loop: "asyncio.AbstractEventLoop", terminal: Terminal) -> None:
    """Silence logs of background tasks and the client library without `-v`, as the command reports its own error."""
    # asyncio logs this for every TLS connection that a server closes.
    logging.getLogger("asyncio").addFilter(lambda record: "eof_received" not in record.msg)
    if not terminal.verbose:
        logging.getLogger().addHandler(logging.NullHandler())
        loop.set_exception_handler(lambda loop, context: None)


BUSY_S = 0.25
"""Seconds of computing without a turn of the loop after which an interrupted command ends, or up to twice that."""


class _Interrupts:
    """Handlers of signals; one that comes before the command begins keeps it from beginning."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._task: asyncio.Task[int | None] | None = None
        self._turned = True
        # Signals that the parent ignores stay ignored, as with nohup and background jobs of scripts.
        ending = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        heeded = [number for number in ending if signal.getsignal(number) is not signal.SIG_IGN]
        self._before = {number: signal.signal(number, self._handle) for number in heeded}

    async def guard(self, session: Session, work: Coroutine[Any, Any, int | None]) -> int | None:
        self._loop = asyncio.get_running_loop()
        # From now on asyncio lets every signal wake the loop, also one that comes just before it waits, or in a thread.
        self._loop.add_signal_handler(signal.SIGPROF, lambda: None)
        self._task = asyncio.current_task()
        try:
            if self._terminal.interruption is not None:
                work.close()
                raise self._terminal.interruption
            return await work
        finally:
            await session.close()

    def restore(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._terminal.interruption is not None or self._terminal.blocked:
            raise Interruption(number)
        self._terminal.interruption = Interruption(number)
        if self._task is None:
            return
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._before.setdefault(signal.SIGPROF, signal.signal(signal.SIGPROF, self._insist))
        signal.setitimer(signal.ITIMER_PROF, BUSY_S, BUSY_S)

    def _insist(self, number: int, frame: FrameType | None) -> None:
        """End a computation, which is not cancelled: the timer counts only time in which the process computes."""
        if not self._turned:
            signal.setitimer(signal.ITIMER_PROF, 0)
            raise self._terminal.interruption or Interruption(number)
        self._turned = False
        self._loop.call_soon_threadsafe(setattr, self, "_turned", True)
