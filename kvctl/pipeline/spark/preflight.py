"""Whether the server that a session is to run on is there, asked before Spark waits minutes for it."""

import os
import re
import socket
from urllib.parse import urlsplit

from kvctl.errors import KvctlError, NoServer, UsageError
from kvctl.pipeline import INSTALL
from kvctl.pipeline.spark.session_config import Target

PATIENCE = 5.0
"""Seconds for a TCP connection."""
ANSWER = 20.0
"""Seconds for a first word of a Connect server."""
PORTS = {"spark": 7077, "sc": 15002}


def check_reachable(target: Target) -> None:
    """Raises NoServer for a master or a Connect server where nobody listens, KvctlError where Connect is missing."""
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
            raise NoServer(f"The {kind} `{scheme}://{place}` cannot be reached: {refusals[0]}")
    if scheme == "sc":
        _check_answer(url, place)


def _check_connect() -> None:
    """pyspark ends the process, as if all were well, where grpc is missing."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # it would tell of each try
    try:
        import grpc  # noqa: F401
    except ImportError as error:
        raise KvctlError(f"Spark Connect cannot be used: {error}", hint=INSTALL) from None


def _check_answer(url: str, address: str) -> None:
    """pyspark's own client goes on asking for ten minutes where something else listens."""
    import grpc
    from pyspark.errors import PySparkException
    from pyspark.sql.connect.client import DefaultChannelBuilder

    try:
        with DefaultChannelBuilder(url).toChannel() as channel:
            grpc.channel_ready_future(channel).result(ANSWER)
    except PySparkException:
        raise UsageError(
            f"`--remote {url.split(';')[0]}` is no URL of a Spark Connect server",
            hint="Write it like `--remote sc://HOST:15002`",
        ) from None
    except grpc.FutureTimeoutError:
        raise NoServer(f"What listens at `sc://{address}` is no Spark Connect server") from None


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
