"""Works on mirrors and aggregates with kvctl's library."""

from contextlib import aclosing

import worker

import kvctl
from kvctl.topology.audit.audit import audit as compare
from kvctl.topology.survey import graph
from kvctl.topology.survey.inventory import survey


async def audit(client: kvctl.Client, name: str) -> None:
    """The command's work, without the process around it."""
    (replica,) = graph.named((await survey({"": client.api})).replicas(), [name])
    (outcome,) = await compare(replica)
    assert outcome.consistent, (outcome.error, outcome.counts)


async def listing(client: kvctl.Client, *names: str) -> None:
    """Every entry of these buckets with its value, without processing."""
    for name in names:
        async with aclosing(client.bucket(name).entry_batches(deleted=True)) as batches:
            async for _ in batches:
                pass


if __name__ == "__main__":
    worker.serve(audit, listing)
