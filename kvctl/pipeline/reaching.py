"""Whether the server that a session is to run on is there, asked before Spark waits minutes for it."""

import socket
from urllib.parse import urlsplit

from kvctl.errors import KvctlError, NoServer, UsageError
from kvctl.pipeline import INSTALL
from kvctl.pipeline.settings import Target

PATIENCE = 5.0
"""Seconds for a TCP connection."""
PORTS = {"spark": 7077, "sc": 15002}


def check_reachable(target: Target) -> None:
    """Raises NoServer for a master or a Connect server where nobody listens, KvctlError where Connect is missing."""
    if target.remote:
        _check_connect()
    url = target.remote or target.master or ""
    scheme, found, rest = url.partition("://")
    if found and scheme in PORTS:
        addresses = rest.split("/")[0].split(",")  # standby masters have commas between them
        refusals = [_refusal(address, PORTS[scheme]) for address in addresses]
        if all(refusals):
            kind = "Spark master" if scheme == "spark" else "Spark Connect server"
            raise NoServer(f"The {kind} `{scheme}://{rest.split('/')[0]}` cannot be reached: {refusals[0]}")


def _check_connect() -> None:
    """pyspark ends the process, as if all were well, where grpc is missing."""
    try:
        import grpc  # noqa: F401
    except ImportError as error:
        raise KvctlError(f"Spark Connect cannot be used: {error}", hint=INSTALL) from None


def _refusal(address: str, port: int) -> str:
    """Why no connection could be made; nothing when one could."""
    try:
        parts = urlsplit(f"//{address}")
        host, chosen = parts.hostname or "", parts.port or port
    except ValueError:
        raise UsageError(f"`{address}` is no address of a server") from None
    if not host:
        raise UsageError(f"`{address}` is no address of a server")
    try:
        socket.create_connection((host, chosen), PATIENCE).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""
