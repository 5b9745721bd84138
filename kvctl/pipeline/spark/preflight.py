"""Check that a session's server is reachable, before Spark waits for it for minutes."""

import os
import re
import socket
from urllib.parse import urlsplit

from kvctl.errors import KvctlError, NoServer, UsageError
from kvctl.pipeline import INSTALL
from kvctl.pipeline.spark.session_config import Target

CONNECT_TIMEOUT_S = 5.0
"""Seconds for a TCP connection."""
ANSWER = 20.0
"""Seconds for the first response of a Connect server."""
PORTS = {"spark": 7077, "sc": 15002}


def check_reachable(target: Target) -> None:
    """Raises NoServer for an unreachable master or Connect server, KvctlError if Connect is not installed."""
    if target.remote:
        _check_connect()
    url = target.remote or target.master or ""
    scheme, found, rest = url.partition("://")
    if found and scheme in PORTS:
        place = re.split("[/;]", rest)[0]  # a token may follow
        addresses = place.split(",")  # standby masters have commas between them
        refusals = [_refusal(address, PORTS[scheme]) for address in addresses]
        if all(refusals):
            kind = "Spark master" if scheme == "spark" else "Spark Connect server"
            raise NoServer(f"Could not reach the {kind} `{scheme}://{place}`: {refusals[0]}")
    if scheme == "sc":
        _check_answer(url, place)


def _check_connect() -> None:
    """Raises KvctlError if grpc is missing: pyspark would end the process as if successful."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # it would report each attempt
    try:
        import grpc  # noqa: F401
    except ImportError as error:
        raise KvctlError(f"Spark Connect is not available: {error}", hint=INSTALL) from None


def _check_answer(url: str, address: str) -> None:
    """Check for a Connect server: pyspark's own client would keep asking another kind of server for ten minutes."""
    import grpc
    from pyspark.errors import PySparkException
    from pyspark.sql.connect.client import DefaultChannelBuilder

    try:
        with DefaultChannelBuilder(url).toChannel() as channel:
            grpc.channel_ready_future(channel).result(ANSWER)
    except PySparkException:
        raise UsageError(
            f"`--remote {url.split(';')[0]}` is not the URL of a Spark Connect server",
            hint="Write it like `--remote sc://HOST:15002`",
        ) from None
    except grpc.FutureTimeoutError:
        raise NoServer(f"`sc://{address}` is not a Spark Connect server") from None


def _refusal(address: str, port: int) -> str:
    """Return why no connection could be opened; empty if one could."""
    try:
        parts = urlsplit(f"//{address}")
        host, chosen = parts.hostname or "", parts.port or port
    except ValueError:
        raise UsageError(f"`{address}` is not a server address") from None
    if not host:
        raise UsageError(f"`{address}` is not a server address")
    try:
        socket.create_connection((host, chosen), CONNECT_TIMEOUT_S).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""
