"""Arguments of the key commands: buckets, keys and filters validated before anything is sent, values, revisions."""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Any, NamedTuple

import kvctl
from kvctl.cli.app.options import flag, live, one_of, option
from kvctl.cli.app.session import Session
from kvctl.cli.keys.output import ENCODINGS, Shape
from kvctl.errors import KvctlError, UsageError
from kvctl.kv.names import check_bucket, check_filter, check_key, check_literal
from kvctl.kv.read import listing, moment
from kvctl.phrases import quoted
from kvctl.units import time_hint

EXAMINATION_S = 0.5
"""Seconds that a reading waits for an examination that began with it: the leader may be away."""
Fact = tuple[Any, ...]
"""The key and what a listing shows of it, in the terms of its reader."""


class Reading(NamedTuple):
    """State to read, and the shape of its rows. All but `leader` and the encoding are for buckets only."""

    shape: Shape
    revision: int | None = None
    as_of: "moment.Moment | None" = None
    leader: bool = False
    literal: bool = False


async def open_bucket(session: Session, name: str, *, write: bool = False) -> "kvctl.Bucket":
    """Return a handle on the bucket. Raises UsageError for its name, ReadOnly if `write` and `--read-only` are set."""
    check_bucket(name)
    if write:
        check_writable(session, name)
    bucket: kvctl.Bucket = (await session.client()).bucket(name)
    if write:
        note_origin(session, bucket)
    return bucket


def note_origin(session: Session, bucket: "kvctl.Bucket") -> None:
    """Note at the end of the command, once, if what was written through a mirror's name went to its origin."""

    def note() -> None:
        binding = bucket.binding
        if binding.origin is not None and bucket.own.any():
            origin = binding.source.bucket
            session.note(f"note: `{bucket.name}` is a mirror; written to its origin `{origin}`", always=True)

    session.at_end(note)


def check_writable(session: Session, name: str) -> None:
    """Raise UsageError if the name is not valid, ReadOnly if `--read-only` is set; nothing is sent."""
    check_bucket(name)
    session.context.require_writable(f"Bucket `{name}`")


def check_keys(keys: Sequence[str], *, literal: bool = False) -> list[str]:
    """Return the distinct keys. Raises UsageError for invalid keys, with `literal` for invalid subjects."""
    return [check_literal(key) if literal else check_key(key) for key in dict.fromkeys(keys)]


def split_keys(texts: Sequence[str], *, literal: bool = False) -> tuple[list[str], list[str]]:
    """Separate keys from filters with wildcards, both in their given order. Raises UsageError."""
    if literal:
        return [check_literal(text) for text in texts], []
    named, filters = [], []
    for text in texts:
        if "*" in text or ">" in text:
            filters.append(check_filter(text))
        else:
            named.append(check_key(text))
    return named, filters


def check_filters(filters: Sequence[str] | None, *, literal: bool = False) -> list[str]:
    """Validate and return the filters of a listing. Raises UsageError."""
    return [check_literal(text) if literal else check_filter(text) for text in filters or ()]


def require_value(value: str | None, file: str | None) -> None:
    """Raise UsageError unless either VALUE or `--file` is given; a missing value never reads standard input."""
    if value is not None and file is not None:
        raise UsageError("VALUE and `--file` cannot be combined")
    if value is None and file is None:
        raise UsageError(
            "Missing argument `VALUE`",
            hint="Use `-` for standard input, `--file FILE` for a file and `''` for an empty value. "
            "Put `--` before a value that starts with a dash",
        )


def read_value(session: Session, value: str | None, file: str | None) -> bytes:
    """Read the value from VALUE, `-` or `--file`. Raises UsageError if both or neither are given."""
    require_value(value, file)
    if file is not None:
        return session.read_input(file)
    if value and value.startswith("@") and os.path.isfile(value[1:]):
        session.note(f"note: the value is the text `{value}`; `--file {value[1:]}` writes the content of the file")
    return session.read_input("-") if value == "-" else os.fsencode(value or "")


def listed(keys: Sequence[str]) -> str:
    """Format the first ten keys as a subject with its verb: ``Key `a` is``, ``Keys `a`, `b` are``."""
    if len(keys) == 1:
        return f"Key `{keys[0]}` is"
    return f"Keys {quoted(keys, 10)} are"


@asynccontextmanager
async def noticing_unindexed(session: Session, name: str) -> AsyncIterator[None]:
    """Warn of keys that servers leave out of the reading in the block: the bucket is examined beside it."""

    async def examine() -> None:
        with suppress(KvctlError):
            bucket = (await session.client()).bucket(name)  # a reading's own handle depends on what was asked before
            if await listing.leaves_out(await bucket.locate()):
                text = f"`{name}` has keys with the byte 0x7f, which servers may leave out here"
                session.warn(f"{text}: `kvctl keys {name}` lists them")

    examining = asyncio.create_task(examine())
    try:
        yield
        await asyncio.wait([examining], timeout=EXAMINATION_S)
    finally:
        examining.cancel()


def parse_revision(text: str) -> int:
    """Parse a revision; 0 means that the key was never written. Raises UsageError."""
    if not text.isdecimal() or len(text) > 19:
        raise UsageError(f"`{text}` is not a revision", hint="Revisions are integers from 1, shown by `kvctl history`")
    return int(text)


def parse_as_of(text: str) -> "moment.Moment":
    """Parse a revision, an RFC 3339 time, or `-15m` (ago). Raises UsageError."""
    return moment.parse_moment(text)


def parse_since(text: str) -> "moment.Moment":
    """Parse an RFC 3339 time, or `-15m` (ago). Raises UsageError."""
    try:
        found = parse_as_of(text)
    except UsageError:
        found = None
    if found is None or found.revision is not None:
        raise UsageError(f"`{text}` is not a time", hint=time_hint(text))
    return found


def parse_encoding(text: str) -> str:
    """Parse `utf-8` or `base64`. Raises UsageError."""
    if text not in ENCODINGS:
        raise UsageError(f"`{text}` is not an encoding", hint=f"Use one of {quoted(ENCODINGS)}")
    return text


def revision(spelling: str, help: str) -> Any:
    """Create an option whose value is a revision, as `int`."""
    return option(spelling, "N", help, live("revisions"), parser=parse_revision)


Encoding = Annotated[
    str | None,
    option(
        "--encoding",
        "KIND",
        "Encoding of values: `utf-8` (fails if a value is not) or `base64`",
        one_of(*ENCODINGS),
        parser=parse_encoding,
    ),
]
AsOf = Annotated[
    Any,  # a Moment, whose class a command without the option does not need
    option("--as-of", "REVISION|TIME", "Read the state after a revision or at a time", parser=parse_as_of),
]
Since = Annotated[
    Any, option("--since", "TIME", "Start with the entries written at this time or later", parser=parse_since)
]
Headers = Annotated[bool, flag("--headers", "Include message headers")]
Literal = Annotated[bool, flag("--literal", "Treat arguments as keys without wildcards, even if non-conforming")]
