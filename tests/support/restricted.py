"""A server on which one user may do everything and another one may not."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from kvctl.server import Server, run_server


class Restricted(NamedTuple):
    """The server, and the addresses of both users."""

    server: Server
    everything: str
    some: str


@contextmanager
def restricted(permissions: str) -> Iterator[Restricted]:
    """Run such a server; the second user has these permissions, in the server's syntax."""
    config = f"""
    listen: "127.0.0.1:@client@", server_name: @name@, jetstream {{ store_dir: "@store@" }}
    authorization {{ users: [
        {{user: all, password: p}}, {{user: some, password: p, permissions: {{ {permissions} }} }}
    ] }}
    """
    with run_server(name="restricted", config=config) as server:
        yield Restricted(server, *(server.url.replace("://", f"://{user}:p@") for user in ("all", "some")))
