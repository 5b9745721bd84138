"""What the key commands take: buckets, keys and filters checked before anything is sent, values, revisions."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvctl.cli.app.session import Session
from kvctl.cli.keys.output.entry_rows import ENCODINGS
from kvctl.errors import ReadOnly, UsageError
from kvctl.kv.names import check_bucket, check_filter, check_key, check_literal
from kvctl.kv.point_in_time.moment import Moment, parse_moment

if TYPE_CHECKING:
    from kvctl.kv.bucket import Bucket


async def open_bucket(session: Session, name: str, *, write: bool = False) -> "Bucket":
    """A handle on the bucket. Raises UsageError for its name, ReadOnly for a `write` where `--read-only` holds."""
    check_bucket(name)
    if write:
        check_writable(session, name)
    bucket: Bucket = (await session.client()).bucket(name)
    return bucket


def check_writable(session: Session, name: str) -> None:
    """Raises UsageError for what is no bucket's name, ReadOnly where `--read-only` holds; nothing is asked."""
    check_bucket(name)
    if session.context.read_only:
        raise ReadOnly(
            f"Bucket `{name}` is open for reading only", hint="`--read-only` or the context's `read_only` is set"
        )


def check_keys(keys: Sequence[str], *, literal: bool = False) -> list[str]:
    """The keys, each once. Raises UsageError for what is no key; with `literal` for what no subject can hold."""
    return [check_literal(key) if literal else check_key(key) for key in dict.fromkeys(keys)]


def split_keys(texts: Sequence[str], *, literal: bool = False) -> tuple[list[str], list[str]]:
    """Keys and filters with wildcards, each in the order given. Raises UsageError."""
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
    """The filters of a listing. Raises UsageError."""
    return [check_literal(text) if literal else check_filter(text) for text in filters or ()]


def check_forced(forced: Sequence[str] | None, *known: str) -> None:
    """Raises UsageError for a `--force` that names no safety check of the command: a slip is no consent."""
    for name in forced or ():
        if name not in known:
            from difflib import get_close_matches

            near = get_close_matches(name, known, n=1)
            guess = f"Did you mean `{near[0]}`? " if near else ""
            checks = ", ".join(f"`{check}`" for check in known)
            raise UsageError(f"`--force {name}` names no safety check of this command", hint=f"{guess}It has {checks}")


def require_value(value: str | None, file: str | None) -> None:
    """Raises UsageError unless either VALUE or `--file` is given: standard input is never read for a missing one."""
    if value is not None and file is not None:
        raise UsageError("VALUE and `--file` exclude each other")
    if value is None and file is None:
        raise UsageError(
            "Missing argument `VALUE`",
            hint="`-` reads it from standard input, `--file FILE` from a file, `''` is an empty one; "
            "put `--` before a value that starts with a dash",
        )


def read_value(session: Session, value: str | None, file: str | None) -> bytes:
    """The value that VALUE, `-` or `--file` gives. Raises UsageError when none or both do."""
    require_value(value, file)
    if file is not None:
        return session.read_input(file)
    return session.read_input("-") if value == "-" else os.fsencode(value or "")


def listed(keys: Sequence[str]) -> str:
    """``Key `a` is``, ``Keys `a`, `b` are``; of many, the first ten."""
    if len(keys) == 1:
        return f"Key `{keys[0]}` is"
    more = f" and {len(keys) - 10} more" if len(keys) > 10 else ""
    return f"Keys {', '.join(f'`{key}`' for key in keys[:10])}{more} are"


def parse_revision(text: str) -> int:
    """A revision; 0 stands for a key never written. Raises UsageError."""
    if not text.isdecimal() or len(text) > 19:
        raise UsageError(f"`{text}` is not a revision", hint="Revisions are whole numbers: `kvctl history` shows them")
    return int(text)


def parse_count(text: str) -> int:
    """A number of things, one at least. Raises UsageError."""
    if not text.isdecimal() or int(text[:19]) < 1:
        raise UsageError(f"`{text}` is not a number above zero")
    return int(text)


def parse_encoding(text: str) -> str:
    """`utf-8` or `base64`. Raises UsageError."""
    if text not in ENCODINGS:
        raise UsageError(f"`{text}` is not an encoding", hint=f"One of {', '.join(ENCODINGS)}")
    return text


def revision(*spellings: str, help: str) -> Any:
    """An option whose value is a revision, as `int`."""
    return typer.Option(*spellings, parser=parse_revision, metavar="N", help=help)


def expected(*spellings: str, help: str) -> Any:
    """An option whose value is a revision, or at a ref of a repository an identity; as text."""
    return typer.Option(*spellings, metavar="N", help=help)


def number(*spellings: str, help: str) -> Any:
    """An option whose value is a number of things, one at least."""
    return typer.Option(*spellings, parser=parse_count, metavar="N", help=help)


Encoding = Annotated[
    str | None,
    typer.Option(
        "--encoding",
        parser=parse_encoding,
        metavar="KIND",
        help="Show values as `utf-8` (an error for those that are not) or all as `base64`",
        autocompletion=lambda incomplete: [kind for kind in ENCODINGS if kind.startswith(incomplete)],
    ),
]
AsOf = Annotated[
    Moment | None,
    typer.Option(
        "--as-of",
        parser=parse_moment,
        metavar="REVISION|TIME",
        help="As it was right after a revision, or at a time",
    ),
]
Headers = Annotated[bool, typer.Option("--headers", help="With the messages' headers")]
Literal = Annotated[bool, typer.Option("--literal", help="Take arguments as keys, whatever they hold: no wildcards")]
