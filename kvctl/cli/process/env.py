"""`kvctl env`: run a command with keys as its environment."""

import os
import re
import signal
from collections.abc import Sequence
from typing import Annotated, NoReturn

from kvctl.cli.app.command import command
from kvctl.cli.app.options import Filters, KeyedName, Program, flag, option
from kvctl.cli.app.session import Session
from kvctl.cli.keys.arguments import split_keys
from kvctl.cli.keys.bucket_target import TargetReader, parse_target
from kvctl.cli.process import programs
from kvctl.errors import ConflictError, KeyNotFound, KvctlError, UsageError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_OTHER = re.compile(r"[^A-Za-z0-9_]")


@command(
    "env",
    examples=[
        "kvctl env config --prefix MY_ -- ./server",
        "kvctl env config@v1 --prefix MY_ -- ./server",
        "kvctl env config 'app.>' --prefix MY_ -- printenv MY_APP_PORT",
        "kvctl env config --only DB_URL,DB_PASSWORD -- sh -c 'psql \"$DB_URL\"'",
    ],
    see=["get", "lock"],
)
async def env(
    session: Session,
    bucket: KeyedName,
    filters: Filters = None,
    *,
    words: Program,
    prefix: Annotated[str | None, option("--prefix", "TEXT", "Put this before each variable name")] = None,
    only: Annotated[
        list[str] | None, option("--only", "NAME", "Set this variable and no others; separated by commas, or repeated")
    ] = None,
    upper: Annotated[bool, flag("--upper/--no-upper", "Upper-case the names, or keep the keys' case")] = True,
) -> None:
    """Run a command with keys as environment variables.

    Key app.port becomes APP_PORT: the name is upper-cased, and every character other than a letter, digit or underscore
    becomes an underscore. A name that would begin with a digit gets a leading underscore. Two keys with the same name
    are an error (4), as are a named key that does not exist (3) and a value with a NUL byte, which no variable can hold
    (1). Variables that are already set are replaced. Values are passed as exact bytes and never appear on a command
    line. Up to 1,024 keys are read from one consistent snapshot, which has all that the leader of the stream had at the
    start. A warning appears if no leader answers.

    Say which variables the bucket may set: with --prefix every name starts with TEXT, with --only NAME no others are
    set. One of them is required (2). Many variables change what a program loads or runs (PATH, LD_PRELOAD, TAR_OPTIONS,
    PAGER and more than any list has). So whoever can write to the bucket controls COMMAND through each variable that
    you name, and through each that COMMAND reads and that starts with the prefix: choose one that is your own.

    NAME@REF reads a repository: at a tag or a commit, COMMAND always gets the same values.

    COMMAND replaces the kvctl process: signals and the exit code are its own. It is looked up before its environment is
    set. As in a shell, the exit code is 127 if it is not found and 126 if it cannot be run. It does not see later
    changes of the keys: use `kvctl watch --exec` to restart or reload it.
    """
    named, wild = split_keys(filters or [])
    names = [name for text in only or () for name in text.split(",") if name]
    if prefix is None and not names:
        raise UsageError(
            "Missing option `--prefix TEXT` or `--only NAME`",
            hint="Say which variables the bucket may set, as in `--prefix APP_` or `--only DB_URL`",
        )
    if prefix is not None and not _NAME.match(prefix):
        raise UsageError(
            f"`{prefix}` cannot start the name of a variable", hint="Use `A-Z a-z 0-9 _`, and do not start with a digit"
        )
    path = programs.find_program(words[0])
    try:
        reader = await parse_target(bucket).reader(session)
        found = await _values(reader, named, wild)
    except KeyNotFound as error:
        if names and error.confirmed:
            error.hint = f"{error.hint}. Names after `--only` are separated by commas, as in `--only A,B`"
        raise
    if reader.unsure(named + wild):
        session.warn("The leader of the stream did not answer: keys may be missing")
    variables = _variables(found, prefix or "", upper, names)
    await session.close()
    _become(path, words, variables)


async def _values(reader: TargetReader, named: list[str], wild: list[str]) -> dict[str, bytes]:
    """Return the values by key, a consistent snapshot if one response can hold them. Raises KeyNotFound."""
    found: dict[str, bytes] = {}
    filters = [*named, *wild] or [">"]
    async for batch in reader.matching(filters, confirm=True):
        found.update((entry.key, entry.value) for entry in batch)
    if missing := [key for key in named if key not in found]:
        entries = await reader.named(missing)
        found.update((entry.key, entry.value) for entry in entries if entry is not None)
    if missing := [key for key in missing if key not in found]:
        raise reader.absent(missing)
    return found


def _variables(found: dict[str, bytes], prefix: str, upper: bool, only: Sequence[str]) -> dict[bytes, bytes]:
    """Map names to values; if `only` has any, those names alone.

    Raises ConflictError for two keys of one name, KvctlError for a NUL.
    """
    keys: dict[str, str] = {}
    for key, value in found.items():
        name = variable_name(key, prefix, upper=upper)
        if only and name not in only:
            continue
        if name in keys:
            first, second = sorted((keys[name], key))
            raise ConflictError(
                f"`{first}` and `{second}` would both set the variable `{name}`", hint="Exclude one of them by filters"
            )
        if b"\0" in value:
            raise KvctlError(
                f"The value of `{key}` has a NUL byte, which no variable can hold", hint="Exclude the key by filters"
            )
        keys[name] = key
    return {name.encode(): found[key] for name, key in keys.items()}


def variable_name(key: str, prefix: str = "", *, upper: bool = True) -> str:
    """Return the name of the environment variable for a key: `APP_PORT` for `app.port`."""
    name = _OTHER.sub("_", key)
    name = prefix + (name.upper() if upper else name)
    return f"_{name}" if name[0].isdigit() else name


def _become(path: str, words: Sequence[str], variables: dict[bytes, bytes]) -> NoReturn:
    """Replace this process. Raises CannotRun."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # Python ignores them, and execve keeps ignored signals ignored
    try:
        os.execve(path, list(words), {**os.environb, **variables})
    except OSError as error:
        raise programs.cannot_run(words[0], error) from None
