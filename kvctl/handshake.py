"""What a context means to the client library, and what its refusals mean to a user."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

from kvctl.contexts import DEFAULT_URL, Context, redact
from kvctl.errors import AuthenticationRefused, KvctlError, NoServer, UsageError

START_HINT = "Start one with `kvctl server run`, or name yours with `--server URL` or `kvctl context add`"


def connect_options(context: Context) -> dict[str, Any]:
    """The client library's keyword arguments. Raises UsageError for a file that cannot be used."""
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
        options["user_credentials"] = _readable(context.creds, "credentials", b"-----BEGIN NATS USER JWT-----")
    elif context.nkey:
        options["nkeys_seed"] = _readable(context.nkey, "nkey seed", b"SU")
    elif context.user_jwt and context.user_seed:
        options |= _jwt_callbacks(context.user_jwt, context.user_seed)
    if context.ca or context.cert or context.tls_first or any(url.startswith(("tls:", "wss:")) for url in servers):
        options["tls"] = _tls(context)
    return options


def explain(causes: list[Exception], context: Context) -> KvctlError:
    """Our error for what the client library met while connecting, the last cause first."""
    url = redact(context.url)
    for cause in reversed(causes):
        if isinstance(cause, KvctlError):
            return cause
        text = str(cause).removeprefix("nats: ").strip("' \r\n")
        lower = text.lower()
        if type(cause).__module__ == "ssl" or isinstance(cause, _ssl_error()):
            return _tls_error(cause, url)
        if any(word in lower for word in ("authorization", "authentication", "permissions violation", "account")):
            return AuthenticationRefused(
                f"The server at `{url}` refused the credentials: {text}",
                hint="Check them with `kvctl context show`; they come from flags, NATS_* variables or the context, in this order",
            )
        if isinstance(cause, socket.gaierror):
            return NoServer(f"Cannot find the host of `{url}`: {cause.strerror}", hint="Check the URL")
        if isinstance(cause, ConnectionRefusedError) or "connect call failed" in lower:
            return NoServer(f"No server answers at `{url}`", hint=START_HINT)
        if "empty response" in lower or "info message" in lower:
            return NoServer(
                f"What answers at `{url}` is not a NATS server, or it wants TLS first", hint="Try `--tls-first`"
            )
        if isinstance(cause, ConnectionError | EOFError) or "unexpected eof" in lower:
            return NoServer(f"The server at `{url}` closed the connection: {text or type(cause).__name__}", hint="If it demands a client certificate, give `--tls-cert` and `--tls-key`")
    if any(isinstance(cause, TimeoutError) for cause in causes):
        seconds = context.timeout.total_seconds()
        return NoServer(
            f"The server at `{url}` did not answer within {seconds:g}s",
            hint="Check the URL; a server that wants TLS first needs `--tls-first`; `--timeout` waits longer",
        )
    last = causes[-1] if causes else None
    detail = f": {str(last).removeprefix('nats: ')}" if last and str(last) else ""
    return NoServer(f"Cannot connect to `{url}`{detail}", hint=START_HINT)


def _readable(path: str, what: str, expected: bytes) -> str:
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"The {what} file `{path}` cannot be read: {error.strerror}") from None
    if expected not in content:
        raise UsageError(f"`{path}` is not a {what} file")
    return path


def _jwt_callbacks(jwt: str, seed: str) -> dict[str, Any]:
    import base64

    import nkeys

    def sign(nonce: str) -> bytes:
        return base64.b64encode(nkeys.from_seed(bytearray(seed.encode())).sign(nonce.encode()))

    return {"user_jwt_cb": lambda: bytearray(jwt.encode()), "signature_cb": sign}


def _tls(context: Context) -> Any:
    import ssl

    try:
        tls = ssl.create_default_context(cafile=context.ca)
        if context.cert:
            tls.load_cert_chain(context.cert, context.key)
    except (OSError, ValueError) as error:
        path = context.ca if not context.cert else f"{context.cert}, {context.key or ''}".rstrip(", ")
        raise UsageError(f"The TLS files cannot be used (`{path}`): {error}") from None
    return tls


def _ssl_error() -> type[Exception]:
    import ssl

    return ssl.SSLError


def _tls_error(cause: Exception, url: str) -> KvctlError:
    reason = getattr(cause, "verify_message", None) or getattr(cause, "reason", None) or str(cause)
    if "certificate required" in str(cause).lower() or "CERTIFICATE_REQUIRED" in str(reason):
        return AuthenticationRefused(
            f"The server at `{url}` demands a client certificate", hint="Give `--tls-cert` and `--tls-key`"
        )
    return NoServer(
        f"The TLS handshake with `{url}` failed: {str(reason).replace('_', ' ').lower()}",
        hint="A server certificate of your own authority needs `--tls-ca FILE`; the URL must name the host in the certificate",
    )
