"""Mirrors whose origin was made anew under them: named, and on a terminal made anew if that is wanted."""

from datetime import timedelta
from typing import TYPE_CHECKING

from kvctl.cli.app.session import Session
from kvctl.errors import Cancelled, KvctlError

if TYPE_CHECKING:
    from kvctl.jetstream.api import Api
    from kvctl.topology.discover.replicas import Replica

_PATIENCE = timedelta(seconds=2)
"""For what is late."""


async def offer(session: Session, api: "Api", stream: str) -> None:
    """Ask for each mirror of the stream that does not hold what it does; where nobody can be asked, warn.

    Raises nothing: the bucket is there, whatever becomes of its mirrors.
    """
    try:
        for replica in await _poisoned(session, api, stream):
            text = f"Mirror `{replica.name}` holds what the bucket held before"
            if session.interactive and await _wanted(session, text):
                await _make_anew(session, replica)
            else:
                session.warn(f"{text}: `kvctl topology audit {replica.name} --repair` makes it anew")
    except KvctlError as error:
        session.warn(f"Whether its mirrors hold what it does is not known: {error.message}")


async def _poisoned(session: Session, api: "Api", stream: str) -> "list[Replica]":
    """Its mirrors in view that do not hold what it does: told by their counts, else by comparing every key."""
    from kvctl.topology.discover import replicas
    from kvctl.topology.discover.inventory import survey
    from kvctl.topology.discover.mirror_origin import lineage

    found = []
    for replica in replicas.in_view(await survey({"": api})):
        (link, *_) = replica.links
        if str(replica.kind) != "mirror" or link.source["name"] != stream or link.origin is None:
            continue
        if replica.silent:
            session.warn(f"Whether mirror `{replica.name}` holds what the bucket does is not known: it does not answer")
            continue
        if lineage(replica.info, link.origin).same is False or await _differs(session, replica):
            found.append(replica)
    return found


async def _differs(session: Session, replica: "Replica") -> bool:
    from kvctl.topology.audit.audit import audit

    if not replica.info["state"]["messages"]:
        return False
    with session.progress(f"Auditing {replica.name}") as progress:
        outcomes = await audit(replica, _PATIENCE, advance=progress.advance)
    return any(outcome.consistent is False for outcome in outcomes)


async def _wanted(session: Session, text: str) -> bool:
    try:
        await session.confirm(f"{text}. Make it anew?")
    except Cancelled:
        return False
    return True


async def _make_anew(session: Session, replica: "Replica") -> None:
    from kvctl.topology.apply import repair

    try:
        with session.progress(f"Filling {replica.name}") as progress:
            await repair.carry_out(repair.Repair(replica), advance=progress.advance)
    except KvctlError as error:
        session.warn(f"Mirror `{replica.name}` could not be made anew: {error.message}")
    else:
        session.note(f"Made mirror `{replica.name}` anew")
