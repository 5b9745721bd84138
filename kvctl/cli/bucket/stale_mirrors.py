"""Stale mirrors, whose origin was recreated: reported, and on a terminal recreated after confirmation."""

from datetime import timedelta

from kvctl.cli.app.session import Session
from kvctl.errors import CancelledByUser, KvctlError
from kvctl.jetstream import api as jetstream_api
from kvctl.topology.audit import audit as replica_audit
from kvctl.topology.audit import repair
from kvctl.topology.health import inspection
from kvctl.topology.survey import graph, inventory

_PATIENCE = timedelta(seconds=2)
"""Time for replication to catch up before a difference counts."""


async def offer_to_recreate(session: Session, api: "jetstream_api.Api", stream: str) -> None:
    """Offer to recreate each mirror whose contents differ from the stream; warn where nobody can be asked.

    Raises nothing, because the bucket itself was created or restored.
    """
    try:
        for replica in await _stale(session, api, stream):
            text = f"Mirror `{replica.name}` still holds data of the previous bucket"
            if session.interactive and await _confirmed(session, text):
                await _recreate(session, replica)
            else:
                session.warn(f"{text}: recreate it with `kvctl topology audit {replica.name} --repair`")
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


async def _confirmed(session: Session, text: str) -> bool:
    try:
        await session.confirm(f"{text}. Recreate it?")
    except CancelledByUser:
        return False
    return True


async def _recreate(session: Session, replica: "graph.Replica") -> None:
    try:
        with session.progress(f"Filling {replica.name}", unit="entries") as progress:
            await repair.run(repair.Repair(replica), advance=progress.advance)
    except KvctlError as error:
        session.warn(f"Could not recreate mirror `{replica.name}`: {error.message}")
    else:
        session.note(f"Recreated mirror `{replica.name}`")
