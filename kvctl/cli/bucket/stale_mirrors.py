"""Stale mirrors, whose origin was recreated: found after a bucket was created or restored, and reported."""

from datetime import timedelta

from kvctl.cli.app.session import Session
from kvctl.errors import KvctlError
from kvctl.jetstream import api as jetstream_api
from kvctl.topology.audit import audit as replica_audit
from kvctl.topology.health import inspection
from kvctl.topology.survey import graph, inventory

_PATIENCE = timedelta(seconds=2)
"""Time for replication to catch up before a difference counts."""


async def warn_of_stale(session: Session, api: "jetstream_api.Api", stream: str) -> None:
    """Warn of each mirror whose contents differ from the stream, with the command that recreates it.

    Raises nothing, because the bucket itself was created or restored.
    """
    try:
        for replica in await _stale(session, api, stream):
            session.warn(
                f"Mirror `{replica.name}` still holds data of the previous bucket: recreate it with "
                f"`kvctl topology audit {replica.name} --repair`"
            )
    except KvctlError as error:
        session.warn(f"Could not check the bucket's mirrors: {error.message}")


async def _stale(session: Session, api: "jetstream_api.Api", stream: str) -> "list[graph.Replica]":
    """Return the stream's visible mirrors whose contents differ, by their counts or else by comparing every key."""
    found = []
    for replica in (await inventory.survey({"": api})).replicas():
        (link, *_) = replica.links
        if str(replica.kind) != "mirror" or link.source["name"] != stream or link.origin is None:
            continue
        if replica.silent:
            session.warn(f"Could not check mirror `{replica.name}`: it does not answer")
            continue
        if inspection.lineage(replica.info, link.origin).same is False or await _differs(session, replica):
            found.append(replica)
    return found


async def _differs(session: Session, replica: "graph.Replica") -> bool:
    if not replica.info["state"]["messages"]:
        return False
    with session.progress(f"Auditing {replica.name}", replica_audit.messages_to_read(replica), unit="keys") as progress:
        outcomes = await replica_audit.audit(replica, _PATIENCE, advance=progress.advance)
    return any(outcome.consistent is False for outcome in outcomes)
