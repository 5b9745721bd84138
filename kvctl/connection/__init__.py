"""Connection of a context; the client library's types and errors stop here.

nats-py keeps the connection (credentials, TLS, reconnects). Requests, subscriptions and publishes are our own frames:
the library's request and publish calls lose errors, hang on a dead server, or take five event loop turns each.
"""

from kvctl.connection.live_connection import Connection, Trace, connect
from kvctl.connection.requests import Subscription, permission_denied

__all__ = ["Connection", "Subscription", "Trace", "connect", "permission_denied"]
