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
    from kvctl.jetstream.consumers.context import Consumer as Consumer
    from kvctl.jetstream.consumers.context import JetStream as JetStream
    from kvctl.jetstream.consumers.context import Stream as Stream
    from kvctl.jetstream.consumers.message import Message as Message
    from kvctl.jetstream.consumers.pull import Event as Event
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
    from kvctl.units import NEVER as NEVER
    from kvctl.versions.catalog import RepositoryConfig as RepositoryConfig
    from kvctl.versions.repositories import Repositories as Repositories
    from kvctl.versions.repository import Repository as Repository

_MODULES = {
    "contexts": "Context",
    "errors": "errors",
    "jetstream.consumers.context": "Consumer JetStream Stream",
    "jetstream.consumers.message": "Message",
    "jetstream.consumers.pull": "Event",
    "kv.bucket": "Bucket",
    "kv.client": "Client connect",
    "kv.config": "BucketConfig",
    "kv.entry": "Entry Operation",
    "kv.lease": "Lease",
    "kv.read.moment": "Moment",
    "kv.read.watch": "CURRENT",
    "kv.settings": "Republish",
    "kv.transaction.transaction": "Transaction",
    "tables.config": "TableConfig",
    "tables.table_manager": "Tables",
    "topology.apply.builders": "add_aggregate_origin create_aggregate create_mirror",
    "topology.model.origins": "Aggregate External Mirror Origin",
    "units": "NEVER",
    "versions.catalog": "RepositoryConfig",
    "versions.repositories": "Repositories",
    "versions.repository": "Repository",
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = ["__version__", *sorted(_HOMES.keys() - {"errors"})]


def __getattr__(name: str) -> "Any":
    """Import public names on first use: every command starts by importing this module."""
    if name not in _HOMES:
        raise AttributeError(f"module 'kvctl' has no attribute '{name}'")
    from importlib import import_module

    module = import_module(f"kvctl.{_HOMES[name]}")
    if _HOMES[name] == "kv.client":
        module.refuse_cycles = _of_topology("survey.origin_lookup", "refuse_cycles")  # type: ignore[attr-defined]
        module.refuse_namesakes = _of_topology("health.overview", "refuse_namesakes")  # type: ignore[attr-defined]
    return module if name == "errors" else getattr(module, name)


def _of_topology(module: str, name: str) -> "Any":
    """Return a function of topology, which knows the other streams, for a client of buckets, which lies below."""

    async def call(*args: "Any") -> None:
        from importlib import import_module

        await getattr(import_module(f"kvctl.topology.{module}"), name)(*args)

    return call
