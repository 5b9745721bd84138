"""`kvctl env`: run a command with keys as its environment."""

import os
import re
import signal
from collections.abc import Collection, Iterable, Sequence
from typing import Annotated, NoReturn

from kvctl.cli.app.command import command
from kvctl.cli.app.options import Filters, KeyedName, Program, flag, option
from kvctl.cli.app.session import Session
from kvctl.cli.keys.arguments import listed, split_keys
from kvctl.cli.keys.bucket_target import TargetReader, parse_target
from kvctl.cli.process import programs
from kvctl.errors import ConflictError, KeyNotFound, KvctlError, RefusedError, UsageError
from kvctl.phrases import quoted

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
    "env",
    examples=[
        "kvctl env config -- ./server",
        "kvctl env config@v1 -- ./server",
        "kvctl env config 'app.>' --prefix MY_ -- printenv MY_APP_PORT",
        "kvctl env config db.url db.password -- sh -c 'psql \"$DB_URL\"'",
    ],
    see=["get", "lock"],
)
async def env(
    session: Session,
    bucket: KeyedName,
    filters: Filters = None,
    *,
    words: Program,
    prefix: Annotated[str, option("--prefix", "TEXT", "Prefix of the variable names")] = "",
    allow: Annotated[
        list[str] | None,
        option("--allow", "NAME", "Set this variable even though it changes how programs run; repeatable"),
    ] = None,
    upper: Annotated[bool, flag("--upper/--no-upper", "Upper-case the names, or keep the keys' case")] = True,
) -> None:
    """Run a command with keys as environment variables.

    Key app.port becomes APP_PORT: the name is upper-cased, and every character other than a letter, digit or underscore
    becomes an underscore. A name that would begin with a digit gets a leading underscore. Two keys with the same name
    are an error (4), as are a named key that does not exist (3) and a value with a NUL byte, which no variable can hold
    (1). Variables that are already set are replaced. Values are passed as exact bytes and never appear on a command
    line. Up to 1,024 keys are read from one consistent snapshot.

    Names that change how programs are loaded or run (PATH, LD_PRELOAD, BASH_ENV, PYTHONPATH, GIT_SSH and others) are
    refused (1), because anyone who can write to the bucket could choose what runs. --allow NAME sets one anyway.

    NAME@REF reads a repository: at a tag or a commit, COMMAND always gets the same values.

    COMMAND replaces the kvctl process: signals and the exit code are its own. It is looked up before its environment is
    set. As in a shell, the exit code is 127 if it is not found and 126 if it cannot be run. It does not see later
    changes of the keys: use `kvctl watch --exec` to restart or reload it.
    """
    named, wild = split_keys(filters or [])
    if prefix and not _NAME.match(prefix):
        raise UsageError(
            f"`{prefix}` cannot start the name of a variable", hint="Use `A-Z a-z 0-9 _`, and do not start with a digit"
        )
    path = programs.find_program(words[0])
    found = await _values(await parse_target(bucket).reader(session), named, wild)
    variables = _variables(found, prefix, upper)
    _refuse_loading(variables, allow or [])
    await session.close()
    _become(path, words, variables)


async def _values(reader: TargetReader, named: list[str], wild: list[str]) -> dict[str, bytes]:
    """Return the values by key, a consistent snapshot if one response can hold them. Raises KeyNotFound."""
    found: dict[str, bytes] = {}
    filters = [*named, *wild] or [">"]
    async for batch in reader.matching(filters):
        found.update((entry.key, entry.value) for entry in batch)
    missing = [key for key in named if key not in found]
    if missing:
        raise KeyNotFound(f"{listed(missing)} not in {reader.place}", hint=reader.listing)
    return found


def _variables(found: dict[str, bytes], prefix: str, upper: bool) -> dict[bytes, bytes]:
    """Map names to values. Raises ConflictError for two keys of one name, KvctlError for a NUL."""
    keys: dict[str, str] = {}
    for key, value in found.items():
        name = variable_name(key, prefix, upper=upper)
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


def _refuse_loading(variables: Iterable[bytes], allowed: Collection[str]) -> None:
    """Raise RefusedError for variables that change how programs are loaded or run."""
    found = sorted({name.decode() for name in variables if _LOADING.match(name.decode())} - set(allowed))
    if not found:
        return
    options = " ".join(f"--allow {name}" for name in found)
    raise RefusedError(
        f"{quoted(found)} would change how programs are loaded or run",
        hint=f"Exclude the keys by filters, add a `--prefix`, or allow them with `{options}`",
    )


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
