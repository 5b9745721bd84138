"""Mapping of a context to the client library's options, of its refusals to our errors; outages and when to give up."""

from __future__ import annotations

import base64
import importlib.util
import socket
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kvctl.contexts import DEFAULT_URL, Context
from kvctl.deferred import pattern
from kvctl.errors import AuthenticationRefused, KvctlError, NoServer, UsageError
from kvctl.phrases import quoted
from kvctl.urls import Address, addresses, redact

START_HINT = "Start one with `kvctl server run`, or name yours with `--server URL` or `kvctl context add`"

REFUSED_HINT = "Credentials come from flags, the context or NATS_* variables: see `kvctl context show`"

MISSING_HINT = "Use `--creds FILE`, `--user NAME` or a context: see `kvctl help environment`"

Login = dict[str, str | None]
"""The client library's `user` and `password`, or its `token`."""
NO_LOGIN: Login = {"user": None, "password": None, "token": None}
Cause = tuple[Exception, Mapping[str, Any]]
"""Error of the library, and the INFO of the server."""

_REFUSALS = ("authorization", "authentication", "permissions violation", "account")
_JWT = pattern(r"(?<![\w-])eyJ[\w-]+\.[\w-]+\.[\w-]+")
_SEED = pattern(r"\bSU[A-Z2-7]{56}\b")


def connect_options(context: Context) -> dict[str, Any]:
    """Return the client library's keyword arguments, without servers and logins.

    Raises UsageError for an invalid address or file.
    """
    context.check()
    options: dict[str, Any] = {
        "name": "kvctl",
        "tls_handshake_first": context.tls_first,
        "connect_timeout": context.timeout.total_seconds(),
    }
    if context.inbox_prefix:
        options["inbox_prefix"] = context.inbox_prefix
    if context.creds:
        options |= _credentials(context.creds)
    elif context.nkey:
        options["nkeys_seed_str"] = _seed(context.nkey, "nkey seed", _read(context.nkey, "nkey seed"))
    elif context.user_jwt and context.user_seed:
        seed = _seed(f"context {context.name or ''}".strip(), "user_seed", context.user_seed)
        options |= _jwt_callbacks(lambda: (context.user_jwt or "", seed))
    if wants_tls(context):
        options["tls"] = _tls(context)
    return options


def logins(context: Context) -> list[tuple[Address, Login]]:
    """Return the servers, with user and password or token for each: the context's own, or those in its URL.

    Raises UsageError for an invalid address, or one that needs a missing package.
    """
    found = addresses(context.url) or addresses(DEFAULT_URL)
    if any(address.websocket for address in found):
        _require_websockets()
    if not (context.user or context.password or context.token):
        return [(address, _login(address.user, address.password, None)) for address in found]
    own = _login(context.user, context.password, context.token)
    return [(address, own) for address in found]


def _login(user: str | None, password: str | None, token: str | None) -> Login:
    if user and password is None:  # the nats CLI treats a user without a password as a token
        return {**NO_LOGIN, "token": token or user}
    return {"user": user, "password": password, "token": token}


def _require_websockets() -> None:
    if importlib.util.find_spec("aiohttp") is None:
        raise UsageError(
            "`ws://` and `wss://` need the package aiohttp", hint="Install it with `pip install 'kvctl[websocket]'`"
        )


def wants_tls(context: Context) -> bool:
    """Return True if an unencrypted connection is not acceptable."""
    schemes = {address.url.partition(":")[0] for address in addresses(context.url)}
    return bool(context.ca or context.cert or context.tls_first or schemes & {"tls", "wss"})


def is_refusal(cause: Exception) -> bool:
    """Return True if a server refused the credentials themselves, rather than for a passing reason such as load."""
    text = text_of(cause).lower()
    return any(word in text for word in ("authorization", "authentication")) and "timeout" not in text


def text_of(cause: Exception) -> str:
    """Return the text of the library's error, which may be the server's."""
    return str(cause).removeprefix("nats: ").strip("' \r\n")


def explain(causes: Sequence[Cause], context: Context) -> KvctlError:
    """Convert the library's errors while connecting to ours: of several, the most informative one."""
    found = [_explained(cause, context, info) for cause, info in reversed(causes)]
    if not found:
        return NoServer(f"Cannot connect to `{redact(context.url)}`", hint=START_HINT)
    return min(found, key=lambda ranked: ranked[0])[1]


def _explained(cause: Exception, context: Context, info: Mapping[str, Any]) -> tuple[int, KvctlError]:
    """Return a rank (lower is more informative) and the error. Errors of a server that answers rank first."""
    url, text = redact(context.url), text_of(cause)
    lower = text.lower()
    if isinstance(cause, KvctlError):
        return 0, cause
    if isinstance(cause, ssl.SSLError):
        return 1, _tls_error(cause, context, info)
    if is_refusal(cause) and _anonymous(context):
        message = f"The server at `{url}` requires credentials, and none were given"
        return 1, AuthenticationRefused(message, hint=MISSING_HINT)
    if any(word in lower for word in _REFUSALS):
        return 1, AuthenticationRefused(f"The server at `{url}` refused the credentials: {text}", hint=REFUSED_HINT)
    if "empty response" in lower or "info message" in lower:
        stranger = f"`{url}` is not a NATS server, or it requires TLS first"
        return 2, NoServer(stranger, hint="Try `--tls-first`")
    if isinstance(cause, socket.gaierror):
        return 4, NoServer(f"Cannot find the host of `{url}`: {cause.strerror}", hint="Check the URL")
    if isinstance(cause, ConnectionRefusedError) or "connect call failed" in lower:
        return 5, NoServer(f"No server answers at `{url}`", hint=START_HINT)
    if isinstance(cause, ConnectionError | EOFError) or "unexpected eof" in lower:
        return 3, _closed(text or type(cause).__name__, context, info)
    if isinstance(cause, TimeoutError):
        return 6, NoServer(
            f"The server at `{url}` did not answer within {context.timeout.total_seconds():g}s",
            hint="Check the URL; use `--tls-first` if the server requires TLS first, or a longer `--timeout`",
        )
    return 7, NoServer(f"Cannot connect to `{url}`{f': {text}' if text else ''}", hint=START_HINT)


def _anonymous(context: Context) -> bool:
    """Return True if neither the context nor its URL has credentials."""
    files = context.creds or context.nkey or context.user_jwt or context.cert
    return not files and all(login == NO_LOGIN for _, login in logins(context))


def _closed(text: str, context: Context, info: Mapping[str, Any]) -> KvctlError:
    if info.get("tls_verify") or context.tls_first:
        return _certificate_refused(context)
    return NoServer(
        f"The server at `{redact(context.url)}` closed the connection: {text}",
        hint="If it requires a client certificate, use `--tls-cert` and `--tls-key`",
    )


def _credentials(path: str) -> dict[str, Any]:
    def read() -> tuple[str, str]:
        """Read JWT and seed, again for every connection: the file may have been renewed."""
        content = _read(path, "credentials")
        jwt = _JWT.search(content)
        if not jwt:
            raise UsageError(f"`{path}` is not a credentials file: it contains no JWT")
        return jwt[0], _seed(path, "credentials", content)

    read()
    return _jwt_callbacks(read)


def _jwt_callbacks(read: Callable[[], tuple[str, str]]) -> dict[str, Any]:
    import nkeys  # type: ignore[import-untyped]

    def sign(nonce: str) -> bytes:
        return base64.b64encode(nkeys.from_seed(bytearray(read()[1].encode())).sign(nonce.encode()))

    return {"user_jwt_cb": lambda: bytearray(read()[0].encode()), "signature_cb": sign}


def _read(path: str, what: str) -> str:
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError as error:
        raise UsageError(f"The {what} file `{path}` cannot be read: {error.strerror}") from None


def _seed(path: str, what: str, content: str) -> str:
    import nkeys

    if seed := _SEED.search(content):
        raw = base64.b32decode(seed[0] + "=" * (-len(seed[0]) % 8))
        if nkeys.crc16(bytearray(raw[:-2])) == int.from_bytes(raw[-2:], "little"):
            return seed[0]
    raise UsageError(f"`{path}` is not a {what} file: it contains no user seed")


def _tls(context: Context) -> Any:
    try:
        tls = ssl.create_default_context(cafile=context.ca)
        if context.cert:
            tls.load_cert_chain(context.cert, context.key)
    except (OSError, ValueError) as error:
        paths = quoted(path for path in (context.ca, context.cert, context.key) if path)
        raise UsageError(f"The TLS files cannot be used ({paths}): {_tls_reason(error)}") from None
    return tls


def _tls_reason(error: Exception) -> str:
    reason = getattr(error, "reason", None)  # of an SSLError, in capitals
    text = str(reason).replace("_", " ").lower() if reason else getattr(error, "strerror", None)
    return text or str(error) or "they are not PEM files"


def _certificate_refused(context: Context) -> KvctlError:
    url = redact(context.url)
    if context.cert:
        return AuthenticationRefused(
            f"The server at `{url}` did not accept the client certificate `{context.cert}`",
            hint="Check that it is signed by an authority the server trusts, and has not expired",
        )
    return AuthenticationRefused(
        f"The server at `{url}` requires a client certificate", hint="Use `--tls-cert` and `--tls-key`"
    )


def _tls_error(cause: Exception, context: Context, info: Mapping[str, Any]) -> KvctlError:
    url = redact(context.url)
    reason = getattr(cause, "verify_message", None) or getattr(cause, "reason", None) or str(cause)
    if "alert" in str(reason).lower() and (context.cert or info.get("tls_verify")):
        return _certificate_refused(context)
    return NoServer(
        f"The TLS handshake with `{url}` failed: {str(reason).replace('_', ' ').lower()}",
        hint="Name your own authority with `--tls-ca FILE`; the URL must have the host name of the certificate",
    )


RECONNECT_WAIT_S = 0.1
"""Pause between two attempts at one server."""
LONGEST_WAIT_S = 5.0
"""Pause between two attempts with refused or unreadable credentials."""
REFUSED_PATIENCE_S = 60.0
"""Time during which refused credentials are tried again: they may be renewed in their file, or on the server."""
REFUSALS = 5
"""Minimum number of consecutive refusals before giving up."""
QUIET_S = 5.0
"""Time that a server may be away before it is reported."""


class CredentialsRefused(AuthenticationRefused, NoServer):
    """A connection that ended because its credentials were refused repeatedly."""


class Outage:
    """Obstacles to a reconnect since the connection was lost."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.begin()

    def begin(self) -> None:
        """Record the loss of the connection."""
        self._since = time.monotonic()
        self._refused_since: float | None = None
        self._refusals = 0
        self._setbacks = 0
        self._reason: KvctlError | None = None
        self._reported: set[str] = set()

    def end(self) -> str | None:
        """Record the reconnect; return a message if its loss was reported."""
        reported = bool(self._reported)
        self.begin()
        return f"Reconnected to `{redact(self._context.url)}`" if reported else None

    def met(self, error: Exception) -> str | None:
        """Record a failed attempt; return a message if it is new."""
        now, refused = time.monotonic(), is_refusal(error)
        if refused:
            self._refusals += 1
            self._refused_since = now if self._refused_since is None else self._refused_since
        if refused or isinstance(error, KvctlError):
            self._setbacks += 1
        elif self._setbacks or now - self._since < QUIET_S:
            return None
        self._reason = explain([(error, {})], self._context)
        if self._reason.message in self._reported:
            return None
        self._reported.add(self._reason.message)
        return f"{self._reason.message}; trying again"

    @property
    def pause(self) -> float:
        """Return the seconds until the same server is tried again: longer with each refusal."""
        return min(RECONNECT_WAIT_S * 2.0 ** min(self._setbacks, 10), LONGEST_WAIT_S)

    @property
    def hopeless(self) -> bool:
        """Return True if the credentials have been refused for so long that a renewal is unlikely."""
        if self._refused_since is None or self._refusals < REFUSALS:
            return False
        return time.monotonic() - self._refused_since > REFUSED_PATIENCE_S

    def error(self, last_word: str) -> NoServer:
        """Build the error for the missing connection; `last_word` is the server's last error before it closed it."""
        url = redact(self._context.url)
        if self._reason is not None and self.hopeless:
            return CredentialsRefused(self._reason.message, hint=self._reason.hint)
        if self._reason is not None and self._setbacks:
            return NoServer(f"Not connected to `{url}`: {self._reason.message}", hint=self._reason.hint)
        hint = REFUSED_HINT if is_refusal(Exception(last_word)) else START_HINT
        return NoServer(f"Not connected to `{url}`{f': {last_word}' if last_word else ''}", hint=hint)
