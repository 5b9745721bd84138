"""Running a command with keys as its environment."""

import os
import re
import signal
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from kvctl.cli.app.command import command, group
from kvctl.cli.app.parameters import BucketName, Filters, Program
from kvctl.cli.app.session import Session
from kvctl.cli.keys.arguments import listed, open_bucket, split_keys
from kvctl.errors import ConflictError, KeyNotFound, KvctlError, RefusedError, UsageError

if TYPE_CHECKING:
    from kvctl.kv.bucket import Bucket

app = group()

_LOADING = re.compile(
    r"(?:PATH|HOME|SHELL|IFS|ENV|PS4|SHELLOPTS|BASHOPTS|BASH_.*|ZDOTDIR|FPATH|CDPATH|PROMPT_COMMAND|LD_.*|DYLD_.*"
    r"|GCONV_PATH|LOCPATH|NLSPATH|GLIBC_TUNABLES|HOSTALIASES|RESOLV_HOST_CONF|PYTHON.*|VIRTUAL_ENV|PERL.*|RUBY.*"
    r"|GEM_HOME|GEM_PATH|BUNDLE_.*|NODE_OPTIONS|NODE_PATH|NPM_CONFIG_.*|JAVA_HOME|JAVA_TOOL_OPTIONS|JDK_JAVA_OPTIONS"
    r"|_JAVA_OPTIONS|CLASSPATH|DOTNET_STARTUP_HOOKS|DOTNET_ROOT|CORECLR_.*|LUA_PATH|LUA_CPATH|LUA_INIT|PHPRC"
    r"|PHP_INI_SCAN_DIR|GOFLAGS|RUSTC|RUSTC_WRAPPER|GIT_.*|SSH_ASKPASS|EDITOR|VISUAL|PAGER|MANPAGER|BROWSER"
    r"|LESSOPEN|LESSCLOSE|MAKEFLAGS|TERMINFO|OPENSSL_CONF|OPENSSL_MODULES)\Z"
)
"""Names that change which programs, libraries or configurations are loaded, or how they run."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_OTHER = re.compile(r"[^A-Za-z0-9_]")


@command(
    app,
    "env",
    examples=[
        "kvctl env config -- ./server",
        "kvctl env config 'app.>' --prefix MY_ -- printenv MY_APP_PORT",
        "kvctl env config db.url db.password -- sh -c 'psql \"$DB_URL\"'",
    ],
    see=["get", "lock"],
)
async def env(
    session: Session,
    bucket: BucketName,
    filters: Filters = None,
    *,
    words: Program,
    prefix: Annotated[str, typer.Option("--prefix", metavar="TEXT", help="What the names begin with, as it is")] = "",
    allow: Annotated[
        list[str] | None,
        typer.Option(
            "--allow", metavar="NAME", help="Set this variable though it changes how programs run; repeatable"
        ),
    ] = None,
    upper: Annotated[bool, typer.Option("--upper/--no-upper", help="Names in capitals, or as the keys are")] = True,
) -> None:
    """Run a command with keys as environment variables.

    The variable of key app.port is APP_PORT: the name in capitals, and whatever is no letter, digit or underscore as an
    underscore; one that would begin with a digit begins with an underscore. Two keys for one name are an error (4), and
    so is a named key that is missing (3), or a value with a NUL, which no variable can hold (1). Variables that are set
    already are replaced. Values are bytes and pass as they are; they are on no command line. Up to 1,024 keys are read
    as they were at one moment.

    Names that change how programs are loaded or run (PATH, LD_PRELOAD, BASH_ENV, PYTHONPATH, GIT_SSH and others)
    are refused (1), because whoever writes the bucket would choose what is run; --allow NAME sets one.

    COMMAND replaces kvctl: signals and the exit code are its own. It is looked for before its environment is set. One
    that cannot be found is 127, one that cannot be run 126, like in a shell. What keys change to later it does not see:
    `kvctl watch --exec` restarts or reloads.
    """
    from kvctl.cli.process.programs import find_program

    named, wild = split_keys(filters or [])
    if prefix and not _NAME.match(prefix):
        raise UsageError(
            f"`{prefix}` cannot begin a variable's name", hint="Letters, digits and `_`, the first no digit"
        )
    path = find_program(words[0])
    found = await _values(await open_bucket(session, bucket), named, wild)
    variables = _variables(found, prefix, upper)
    _refuse_loading(variables, allow or [])
    await session.close()
    _become(path, words, variables)


async def _values(bucket: "Bucket", named: list[str], wild: list[str]) -> dict[str, bytes]:
    """What the keys hold; of one moment where one answer of the server has room for them. Raises KeyNotFound."""
    found: dict[str, bytes] = {}
    filters = [*named, *wild] or [">"]
    async for batch in bucket.get_matching(*filters):
        found.update((entry.key, entry.value) for entry in batch)
    missing = [key for key in named if key not in found]
    if missing:
        raise KeyNotFound(f"{listed(missing)} not in bucket `{bucket.name}`")
    return found


def _variables(found: dict[str, bytes], prefix: str, upper: bool) -> dict[bytes, bytes]:
    """Names and values. Raises ConflictError for two keys of one name, KvctlError for a NUL."""
    keys: dict[str, str] = {}
    for key, value in found.items():
        name = variable_name(key, prefix, upper=upper)
        if name in keys:
            first, second = sorted((keys[name], key))
            raise ConflictError(
                f"`{first}` and `{second}` would both be the variable `{name}`", hint="Filters leave one of them out"
            )
        if b"\0" in value:
            raise KvctlError(
                f"The value of `{key}` has a NUL byte, which no variable can hold", hint="Filters leave the key out"
            )
        keys[name] = key
    return {name.encode(): found[key] for name, key in keys.items()}


def _refuse_loading(variables: Iterable[bytes], allowed: Collection[str]) -> None:
    """Raises RefusedError for variables that change how programs are loaded or run."""
    found = sorted({name.decode() for name in variables if _LOADING.match(name.decode())} - set(allowed))
    if not found:
        return
    options = " ".join(f"--allow {name}" for name in found)
    raise RefusedError(
        f"{', '.join(f'`{name}`' for name in found)} would change how programs are loaded or run",
        hint=f"Leave the keys out by filters, add a `--prefix`, or set them with `{options}`",
    )


def variable_name(key: str, prefix: str = "", *, upper: bool = True) -> str:
    """The environment variable for a key: `app.port` is `APP_PORT`."""
    name = _OTHER.sub("_", key)
    name = prefix + (name.upper() if upper else name)
    return f"_{name}" if name[0].isdigit() else name


def _become(path: str, words: Sequence[str], variables: dict[bytes, bytes]) -> NoReturn:
    """Replace this process. Raises CannotRun."""
    from kvctl.cli.process.programs import cannot_run

    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # Python ignores them, and what is ignored stays so
    try:
        os.execve(path, list(words), {**os.environb, **variables})
    except OSError as error:
        raise cannot_run(words[0], error) from None
