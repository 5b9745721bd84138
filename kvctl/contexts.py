"""Named connections: flags, environment and the `nats` CLI's context files, resolved to one `Context`.

The files are `$XDG_CONFIG_HOME/nats/context/NAME.json`; the selected name is in `nats/context.txt`.
Unknown fields of a file are kept when it is written.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from kvctl import atomic_file
from kvctl.errors import ContextNotFound, ReadOnly, UsageError
from kvctl.suggest import did_you_mean
from kvctl.tokens import check_prefix, shown
from kvctl.units import parse_duration
from kvctl.urls import addresses, redact

if TYPE_CHECKING:
    from pathlib import Path

DEFAULT_URL = "nats://127.0.0.1:4222"
DEFAULT_TIMEOUT = timedelta(seconds=5)
MAX_BYTES = 16 << 20
"""Maximum size of a context file."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Context:
    """Settings of a connection: a context file, or flags and environment."""

    name: str | None = None
    """The context file's name."""
    url: str = DEFAULT_URL
    """One server, or several separated by commas."""
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    creds: str | None = None
    """Credentials file: a JWT and its seed."""
    nkey: str | None = None
    """Seed file."""
    user_jwt: str | None = field(default=None, repr=False)
    user_seed: str | None = field(default=None, repr=False)
    cert: str | None = None
    key: str | None = None
    ca: str | None = None
    tls_first: bool = False
    inbox_prefix: str | None = None
    domain: str | None = None
    api_prefix: str | None = None
    description: str = ""
    read_only: bool = False
    """Refuse whatever would write; this field is kvctl's own."""
    timeout: timedelta = DEFAULT_TIMEOUT
    origin: str = "default"
    """Source of the URL: "flag", "context `x`", "NATS_URL", "selected context `x`" or "default"."""
    warnings: tuple[str, ...] = field(default=(), compare=False)
    """Warnings about the context's file."""

    def __repr__(self) -> str:
        """Show the fields that are set, without secrets, including those in the URL."""
        values = {item.name: getattr(self, item.name) for item in fields(self) if item.repr}
        given = {name: value for name, value in values.items() if value not in (None, "", False, ())}
        given["url"] = redact(self.url)
        return f"Context({', '.join(f'{name}={value!r}' for name, value in given.items())})"

    def secrets(self) -> tuple[str, ...]:
        """Return the names of the secret fields that are set."""
        return tuple(name for name in _SECRETS if getattr(self, name) is not None)

    def require_writable(self, what: str = "The connection") -> None:
        """Raise ReadOnly if the context is read-only; `what` is the subject of the message."""
        if self.read_only:
            raise read_only_error(what)

    def check(self) -> None:
        """Raise UsageError for an invalid URL, domain or prefix."""
        addresses(self.url)
        if self.domain:
            check_prefix("domain", self.domain, tokens=1)
        for name in ("api_prefix", "inbox_prefix"):
            if prefix := getattr(self, name):
                check_prefix(name, prefix)


def read_only_error(what: str = "The connection") -> ReadOnly:
    """Build the error for a write through a context, connection or handle that is read-only."""
    return ReadOnly(f"{what} is read-only", hint="`--read-only` or the context's `read_only` is set")


_SECRETS = ("password", "token", "user_jwt", "user_seed")
_SWITCHES = ("tls_first", "read_only")
_PATHS = ("creds", "nkey", "cert", "key", "ca")
_STORED = "description url user password token creds nkey cert key ca domain api_prefix inbox_prefix user_jwt user_seed"
_FILE_FIELDS = {
    **{name: name for name in [*_STORED.split(), *_SWITCHES]},
    "domain": "jetstream_domain",
    "api_prefix": "jetstream_api_prefix",
}
_VARIABLES = "NATS_URL NATS_USER NATS_PASSWORD NATS_TOKEN NATS_CREDS NATS_NKEY NATS_CERT NATS_KEY NATS_CA".split()
_ENVIRONMENT = {name.removeprefix("NATS_").lower(): name for name in _VARIABLES}
VARIABLES = (*_VARIABLES, "NATS_CONTEXT")
"""Environment variables that name a server or credentials."""
_FLAGS = "url user creds nkey cert key ca tls_first domain api_prefix inbox_prefix read_only"
FLAGS = {
    **{name: name for name in _FLAGS.split()},
    "url": "server",
    "cert": "tls_cert",
    "key": "tls_key",
    "ca": "tls_ca",
}
# Fields that belong together: the first layer that sets one of a group decides the entire group.
_GROUPS = (
    ("user", "password", "token", "creds", "nkey", "user_jwt", "user_seed"),
    ("cert", "key"),
    ("domain", "api_prefix"),
)


def resolve(flags: Mapping[str, object], environ: Mapping[str, str], store: ContextStore | None = None) -> Context:
    """Resolve the connection from flags, `--context`, environment, selected context and defaults, in this order.

    A server named by a flag or NATS_URL overrides a context that `--context` did not name: the context's credentials
    do not belong to that server. Raises ContextNotFound, UsageError.
    """
    store = store or ContextStore(_default_directory(environ))
    layers: list[tuple[str, dict[str, Any]]] = [("flag", flag_settings(flags))]
    named = flags.get("context")
    if named:
        layers.append((f"context `{named}`", store.settings(str(named))))
    layers.append(("NATS_URL", {name: environ[of] for name, of in _ENVIRONMENT.items() if environ.get(of)}))
    if not named and not any("url" in layer for _, layer in layers):
        layers.extend((origin, store.settings(name)) for origin, name in _implied(environ, store))
    merged = _merge([layer for _, layer in layers])
    merged["origin"] = next((origin for origin, layer in layers if "url" in layer), "default")
    files = [flags.get("password_file"), flags.get("token_file"), merged.get("creds"), merged.get("nkey")]
    merged["warnings"] = (*merged.get("warnings", ()), *_open_to_others(files))
    merged["timeout"] = _timeout(environ.get("NATS_TIMEOUT") if flags.get("timeout") is None else flags["timeout"])
    return Context(**_looked_up(merged, environ))


def flag_settings(flags: Mapping[str, object]) -> dict[str, Any]:
    """Return the settings of `--server`, `--user` and so on under `Context`'s names; secrets are read from their files.

    Raises UsageError.
    """
    for name, value in flags.items():
        if value == "":  # an empty variable in `--context "$NAME"` must not silently mean another server
            raise UsageError(f"`--{name.replace('_', '-')}` is empty")
    layer = {name: flags[flag] for name, flag in FLAGS.items() if flags.get(flag)}
    if "domain" in layer and "api_prefix" in layer:
        raise UsageError("`--domain` and `--api-prefix` cannot be combined")
    for name in ("password", "token"):
        if path := flags.get(f"{name}_file"):
            layer[name] = _read_secret(str(path), f"--{name}-file")
    return layer


class ContextStore:
    """Directory of context files, by default `$XDG_CONFIG_HOME/nats` or `~/.config/nats`."""

    def __init__(self, directory: str | Path | None = None) -> None:
        self._folder = os.fspath(directory or _default_directory(os.environ))

    @property
    def directory(self) -> Path:
        """Path of the directory."""
        from pathlib import Path

        return Path(self._folder)

    def names(self) -> list[str]:
        """Return the names of all contexts, sorted."""
        with suppress(FileNotFoundError, NotADirectoryError):
            found = (self.directory / "context").iterdir()
            return sorted(path.stem for path in found if path.suffix == ".json" and path.stat().st_size)
        return []

    def load(self, name: str) -> Context:
        """Return the context of this name, ready to connect. Raises ContextNotFound, UsageError."""
        return Context(**_looked_up(self.settings(name), os.environ), origin=f"context `{name}`")

    def stored(self, name: str) -> Context:
        """Return the context as stored, with references to other places unresolved; to show and to edit."""
        return Context(**self.settings(name), origin=f"context `{name}`")

    def settings(self, name: str) -> dict[str, Any]:
        """Return the fields set in a context file, under `Context`'s names; `~` and `$VARIABLES` are expanded.

        Raises ContextNotFound, and UsageError for an invalid name or file.
        """
        file = self._file(name)
        document = self._read(name)
        return {**_parse(document, file), "name": name, "warnings": tuple(_complaints(file, document))}

    def save(self, context: Context) -> Path:
        """Write the context under its name, mode 0600; unknown and unchanged fields are kept.

        Raises UsageError for a context that cannot be used to connect.
        """
        context.check()
        path = self.path(context.name or "")
        document = self._read(context.name or "") if path.exists() else {}
        before = _parse(document, str(path))
        for name, file_name in _FILE_FIELDS.items():
            value = getattr(context, name) or None
            if value != before.get(name):
                document[file_name] = value if value is not None else type(document.get(file_name) or "")()
        document.setdefault("url", context.url)
        _write(path, json.dumps(document, indent=2, ensure_ascii=False) + "\n")
        return path

    def delete(self, name: str) -> None:
        """Delete the context, and its selection if it was selected. Raises ContextNotFound."""
        try:
            self.path(name).unlink()
        except FileNotFoundError:
            raise self._missing(name) from None
        if self.selected() == name:
            (self.directory / "context.txt").unlink(missing_ok=True)

    def select(self, name: str) -> None:
        """Select the default context. Raises ContextNotFound."""
        if not self.path(name).exists():
            raise self._missing(name)
        previous = self.selected()
        if previous and previous != name:
            _write(self.directory / "previous-context.txt", previous)
        _write(self.directory / "context.txt", name)

    def selected(self) -> str | None:
        """Return the name in `context.txt`, if any."""
        try:
            return _content(f"{self._folder}/context.txt").decode().strip() or None
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise UsageError(f"`{self._folder}/context.txt` cannot be read: {error.strerror}") from None

    def path(self, name: str) -> Path:
        """Return the path of the context's file. Raises UsageError for a name that leaves the directory."""
        from pathlib import Path

        return Path(self._file(name))

    def _file(self, name: str) -> str:
        if not name or ".." in name or any(c in "/\\" or not c.isprintable() for c in name):
            raise UsageError(f"`{shown(name)}` is not a context name", hint="Use `A-Z a-z 0-9 _ -`")
        return f"{self._folder}/context/{name}.json"

    def _read(self, name: str) -> dict[str, Any]:
        try:
            document = json.loads(_content(self._file(name)))
        except (FileNotFoundError, NotADirectoryError):
            raise self._missing(name) from None
        except OSError as error:
            raise UsageError(f"Context `{name}` cannot be read: {error.strerror}") from None
        except (ValueError, RecursionError) as error:
            raise UsageError(f"The file of context `{name}` is not JSON: {error}") from None
        if not isinstance(document, dict):
            raise UsageError(f"The file of context `{name}` is not a JSON object")
        return document

    def _missing(self, name: str) -> ContextNotFound:
        remedy = f"List contexts with `kvctl context ls`, add one with `kvctl context add {name} --server URL`"
        return ContextNotFound(f"Context `{name}` does not exist", hint=did_you_mean(name, self.names(), remedy))


def _default_directory(environ: Mapping[str, str]) -> str:
    home = environ.get("HOME") or os.path.expanduser("~")
    return os.path.join(environ.get("XDG_CONFIG_HOME") or f"{home}/.config", "nats")


def _implied(environ: Mapping[str, str], store: ContextStore) -> Iterable[tuple[str, str]]:
    if name := environ.get("NATS_CONTEXT"):
        yield f"NATS_CONTEXT `{name}`", name
    elif selected := store.selected():
        yield f"selected context `{selected}`", selected


def _content(path: str) -> bytes:
    """Return the content of a file of contexts. Raises OSError, also for a pipe or a device, which may never end."""
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_BYTES:
        raise OSError(errno.EINVAL, f"It is not a regular file of at most {MAX_BYTES >> 20} MiB")
    with open(path, "rb") as file:
        return file.read(MAX_BYTES)


def _read_secret(path: str, flag: str) -> str:
    try:
        with open(path) as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise UsageError(f"`{flag} {path}` cannot be read: {reason}") from None
    secret = text.removesuffix("\n").removesuffix("\r")
    if not secret:
        raise UsageError(f"`{flag} {path}` is empty")
    return secret


def _merge(layers: list[dict[str, Any]]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for layer in layers:
        closed = {name for group in _GROUPS if any(name in merged for name in group) for name in group}
        if "user" in merged and "password" not in merged and layer.get("user") in (None, merged["user"]):
            closed.discard("password")
        merged |= {name: value for name, value in layer.items() if name not in merged and name not in closed}
    return merged


def _timeout(value: object) -> timedelta:
    try:
        timeout = value if isinstance(value, timedelta) else parse_duration(str(value)) if value else DEFAULT_TIMEOUT
    except UsageError as error:
        raise UsageError(f"The timeout {error.message}", hint=error.hint) from None
    if timeout <= timedelta():
        raise UsageError("The timeout must be greater than 0", hint="Write it like `--timeout 5s`")
    return timeout


def _looked_up(settings: dict[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """Replace `env://NAME` by the variable; a reference that needs another program is refused, never run."""
    for name in (*_SECRETS, *_PATHS):
        scheme, found, variable = (settings.get(name) or "").partition("://")
        if scheme in ("nsc", "op") or (name in _PATHS and scheme == "env"):
            raise UsageError(
                f"`{name}` refers to `{scheme}://`, which kvctl does not support",
                hint="Export the credentials to a file and name it with `--creds FILE`",
            )
        if found and scheme == "env":
            if not environ.get(variable):
                raise UsageError(f"`{name}` refers to the variable `{variable}`, which is not set")
            settings[name] = environ[variable]
    return settings


def _parse(document: Mapping[str, Any], file: str) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for name, file_name in _FILE_FIELDS.items():
        if value := document.get(file_name):
            if not isinstance(value, bool if name in _SWITCHES else str):
                raise UsageError(f"`{file_name}` in `{file}` has a value of the wrong type")
            settings[name] = _expand(str(value)) if name in _PATHS else value
    if document.get("nsc") and not settings.get("creds"):
        settings["creds"] = f"nsc://{str(document['nsc']).removeprefix('nsc://')}"
    return settings


def _expand(path: str) -> str:
    return os.path.expanduser(os.path.expandvars(path.removeprefix("file://")))


def _open_to_others(files: Iterable[object]) -> Iterable[str]:
    """Yield a warning for each file with a secret that others can read."""
    for file in filter(None, files):
        with suppress(OSError, ValueError):  # whoever reads it reports that
            mode = os.stat(str(file)).st_mode
            if stat.S_ISREG(mode) and mode & 0o077:
                yield f"Other users can read `{file}`; fix it with `chmod 600 {file}`"


def _complaints(file: str, document: Mapping[str, Any]) -> Iterable[str]:
    yield from _open_to_others([file])
    if document.get("socks_proxy"):
        yield f"`socks_proxy` in `{file}` is not supported; kvctl connects directly"


def _write(path: Path, text: str) -> None:
    """Replace the file atomically, so that readers see the old or the new one; readable by its owner only."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    atomic_file.replace(path, text.encode())
