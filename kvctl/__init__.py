"""kvctl: NATS key-value buckets and the topologies that replicate them.

async with kvctl.connect("nats://127.0.0.1:4222") as client:
    orders = await client.create_bucket("orders", history=5)
    revision = await orders.put("NEW.7", b"two of these")
    entry = await orders.get("NEW.7")
"""

TYPE_CHECKING = False  # type checkers take it for true: importing `typing` costs more than everything else here

__version__ = "0.1.0"

if TYPE_CHECKING:
    from typing import Any

    from kvctl.contexts import Context as Context
    from kvctl.jetstream.consumers.consumer import Consumer as Consumer
    from kvctl.jetstream.consumers.message import Message as Message
    from kvctl.jetstream.consumers.pull import Event as Event
    from kvctl.jetstream.context import JetStream as JetStream
    from kvctl.jetstream.context import Stream as Stream
    from kvctl.kv.bucket import Bucket as Bucket
    from kvctl.kv.client import Client as Client
    from kvctl.kv.client import connect as connect
    from kvctl.kv.config import BucketConfig as BucketConfig
    from kvctl.kv.entry import Entry as Entry
    from kvctl.kv.entry import Operation as Operation
    from kvctl.kv.lease import Lease as Lease
    from kvctl.kv.read.moment import Moment as Moment
    from kvctl.kv.read.watch import CURRENT as CURRENT
    from kvctl.kv.settings import Republish as Republish
    from kvctl.kv.transaction.transaction import Transaction as Transaction
    from kvctl.tables.config import TableConfig as TableConfig
    from kvctl.tables.table_manager import Tables as Tables
    from kvctl.topology.apply.builders import add_aggregate_origin as add_aggregate_origin
    from kvctl.topology.apply.builders import create_aggregate as create_aggregate
    from kvctl.topology.apply.builders import create_mirror as create_mirror
    from kvctl.topology.model.origins import Aggregate as Aggregate
    from kvctl.topology.model.origins import External as External
    from kvctl.topology.model.origins import Mirror as Mirror
    from kvctl.topology.model.origins import Origin as Origin
    from kvctl.versions.config import RepositoryConfig as RepositoryConfig
    from kvctl.versions.repositories import Repositories as Repositories
    from kvctl.versions.repository import Repository as Repository

_HOMES = {
    "Bucket": "kv.bucket", "BucketConfig": "kv.config", "CURRENT": "kv.read.watch", "Client": "kv.client",
    "Context": "contexts", "Entry": "kv.entry", "Lease": "kv.lease", "Operation": "kv.entry",
    "Moment": "kv.read.moment", "Republish": "kv.settings", "Transaction": "kv.transaction.transaction",
    "connect": "kv.client", "errors": "errors",
    "Aggregate": "topology.model.origins", "External": "topology.model.origins", "Mirror": "topology.model.origins",
    "Origin": "topology.model.origins", "add_aggregate_origin": "topology.apply.builders",
    "create_aggregate": "topology.apply.builders", "create_mirror": "topology.apply.builders",
    "TableConfig": "tables.config", "Tables": "tables.table_manager",
    "Repositories": "versions.repositories", "Repository": "versions.repository",
    "RepositoryConfig": "versions.config",
    "Consumer": "jetstream.consumers.consumer", "Event": "jetstream.consumers.pull",
    "JetStream": "jetstream.context", "Message": "jetstream.consumers.message", "Stream": "jetstream.context",
}  # fmt: skip

__all__ = [
    "CURRENT", "Aggregate", "Bucket", "BucketConfig", "Client", "Consumer", "Context", "Entry", "Event", "External",
    "JetStream", "Lease", "Message", "Mirror", "Moment", "Operation", "Origin", "Repositories", "Repository",
    "RepositoryConfig", "Republish", "Stream", "TableConfig", "Tables", "Transaction", "__version__",
    "add_aggregate_origin", "connect", "create_aggregate", "create_mirror",
]  # fmt: skip


def __getattr__(name: str) -> "Any":
    """Import public names on first use: every command starts by importing this module."""
    if name not in _HOMES:
        raise AttributeError(f"module 'kvctl' has no attribute '{name}'")
    from importlib import import_module

    module = import_module(f"kvctl.{_HOMES[name]}")
    return module if name == "errors" else getattr(module, name)
