"""What a context means to the client library, and what its refusals mean to a user."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kvctl.addresses import redact
from kvctl.contexts import DEFAULT_URL, Context
from kvctl.errors import AuthenticationRefused, KvctlError, NoServer, UsageError

START_HINT = "Start one with `kvctl server run`, or name yours with `--server URL` or `kvctl context add`"

_REFUSALS = ("authorization", "authentication", "permissions violation", "account")
_JWT = re.compile(r"\beyJ[\w-]+\.[\w-]+\.[\w-]+")
_SEED = re.compile(r"\bSU[A-Z2-7]{56}\b")


def connect_options(context: Context) -> dict[str, Any]:
    """The client library's keyword arguments. Raises UsageError for what cannot be used: an address, a file."""
    context.check()
    servers = [url.strip() for url in context.url.split(",") if url.strip()]
    options: dict[str, Any] = {
        "servers": servers or [DEFAULT_URL],
        "name": "kvctl",
        "user": context.user,
        "password": context.password,
        "token": context.token,
        "tls_handshake_first": context.tls_first,
        "connect_timeout": context.timeout.total_seconds(),
    }
    if context.inbox_prefix:
        options["inbox_prefix"] = context.inbox_prefix
    if context.user and not context.password:
        # The nats CLI takes a user without a password for a token.
        options |= {"user": None, "token": context.token or context.user}
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


def wants_tls(context: Context) -> bool:
    """Whether a connection in the clear is not acceptable."""
    schemes = {url.strip().partition(":")[0] for url in context.url.split(",")}
    return bool(context.ca or context.cert or context.tls_first or schemes & {"tls", "wss"})


def insist_on_tls(client: Any, context: Context) -> None:
    """Refuse a server without TLS where TLS was asked for, before credentials are sent, on reconnects too.

    The library would go on in the clear.
    """
    announce = client._connect_command

    def checked() -> Any:
        writer = getattr(client._transport, "_io_writer", None)
        if writer is not None and writer.get_extra_info("ssl_object") is None:
            raise _InTheClear(
                f"The server at `{redact(context.url)}` offers no TLS",
                hint="If you mean to connect in the clear, use `nats://` and none of the TLS options",
            )
        return announce()

    if wants_tls(context):
        client._connect_command = checked


class _InTheClear(NoServer, ConnectionError):
    """Raised inside the client library, which lets only an OSError through to its caller."""


def explain(causes: list[Exception], context: Context, info: Mapping[str, Any]) -> KvctlError:
    """Our error for what the library met while connecting, the last cause first; `info` is the server's."""
    url = redact(context.url)
    for cause in reversed(causes):
        if isinstance(cause, KvctlError):
            return cause
        text = str(cause).removeprefix("nats: ").strip("' \r\n")
        lower = text.lower()
        if type(cause).__module__ == "ssl" or isinstance(cause, _ssl_error()):
            return _tls_error(cause, context, info)
        if any(word in lower for word in _REFUSALS):
            return AuthenticationRefused(
                f"The server at `{url}` refused the credentials: {text}",
                hint="They come from flags, the context or NATS_* variables: see `kvctl context show`",
            )
        if isinstance(cause, socket.gaierror):
            return NoServer(f"Cannot find the host of `{url}`: {cause.strerror}", hint="Check the URL")
        if isinstance(cause, ConnectionRefusedError) or "connect call failed" in lower:
            return NoServer(f"No server answers at `{url}`", hint=START_HINT)
        if "empty response" in lower or "info message" in lower:
            return NoServer(
                f"What answers at `{url}` is not a NATS server, or it wants TLS first",
                hint="Try `--tls-first`",
            )
        if isinstance(cause, ConnectionError | EOFError) or "unexpected eof" in lower:
            if info.get("tls_verify") or context.tls_first:
                return _certificate_refused(context)
            return NoServer(
                f"The server at `{url}` closed the connection: {text or type(cause).__name__}",
                hint="If it demands a client certificate, give `--tls-cert` and `--tls-key`",
            )
    if any(isinstance(cause, TimeoutError) for cause in causes):
        seconds = context.timeout.total_seconds()
        return NoServer(
            f"The server at `{url}` did not answer within {seconds:g}s",
            hint="Check the URL; a server that wants TLS first needs `--tls-first`; `--timeout` waits longer",
        )
    last = causes[-1] if causes else None
    detail = f": {str(last).removeprefix('nats: ')}" if last and str(last) else ""
    return NoServer(f"Cannot connect to `{url}`{detail}", hint=START_HINT)


def _credentials(path: str) -> dict[str, Any]:
    def read() -> tuple[str, str]:
        """JWT and seed, read again for every connection: the file may be renewed meanwhile."""
        content = _read(path, "credentials")
        jwt = _JWT.search(content)
        if not jwt:
            raise UsageError(f"`{path}` is not a credentials file: it holds no JWT")
        return jwt[0], _seed(path, "credentials", content)

    read()
    return _jwt_callbacks(read)


def _jwt_callbacks(read: Callable[[], tuple[str, str]]) -> dict[str, Any]:
    import base64

    import nkeys  # type: ignore[import-untyped]

    def sign(nonce: str) -> bytes:
        return base64.b64encode(nkeys.from_seed(bytearray(read()[1].encode())).sign(nonce.encode()))

    return {"user_jwt_cb": lambda: bytearray(read()[0].encode()), "signature_cb": sign}


def _read(path: str, what: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError as error:
        raise UsageError(f"The {what} file `{path}` cannot be read: {error.strerror}") from None


def _seed(path: str, what: str, content: str) -> str:
    import base64

    import nkeys

    if seed := _SEED.search(content):
        raw = base64.b32decode(seed[0] + "=" * (-len(seed[0]) % 8))
        if nkeys.crc16(bytearray(raw[:-2])) == int.from_bytes(raw[-2:], "little"):
            return seed[0]
    raise UsageError(f"`{path}` is not a {what} file: it holds no user's seed")


def _tls(context: Context) -> Any:
    import ssl

    try:
        tls = ssl.create_default_context(cafile=context.ca)
        if context.cert:
            tls.load_cert_chain(context.cert, context.key)
    except (OSError, ValueError) as error:
        paths = ", ".join(f"`{path}`" for path in (context.ca, context.cert, context.key) if path)
        raise UsageError(f"The TLS files cannot be used ({paths}): {_tls_reason(error)}") from None
    return tls


def _tls_reason(error: Exception) -> str:
    reason = getattr(error, "reason", None)  # of an SSLError, in capitals
    text = str(reason).replace("_", " ").lower() if reason else getattr(error, "strerror", None)
    return text or str(error) or "they are not PEM files"


def _ssl_error() -> type[Exception]:
    import ssl

    return ssl.SSLError


def _certificate_refused(context: Context) -> KvctlError:
    url = redact(context.url)
    if context.cert:
        return AuthenticationRefused(
            f"The server at `{url}` did not accept the client certificate `{context.cert}`",
            hint="Check that an authority the server knows has signed it, and that it has not expired",
        )
    return AuthenticationRefused(
        f"The server at `{url}` demands a client certificate", hint="Give `--tls-cert` and `--tls-key`"
    )


def _tls_error(cause: Exception, context: Context, info: Mapping[str, Any]) -> KvctlError:
    url = redact(context.url)
    reason = getattr(cause, "verify_message", None) or getattr(cause, "reason", None) or str(cause)
    if "alert" in str(reason).lower() and (context.cert or info.get("tls_verify")):
        return _certificate_refused(context)
    return NoServer(
        f"The TLS handshake with `{url}` failed: {str(reason).replace('_', ' ').lower()}",
        hint="An authority of your own needs `--tls-ca FILE`; the URL must name the certificate's host",
    )
