"""Mirrors whose origin was made anew under them: named, and on a terminal made anew if that is wanted."""

from typing import TYPE_CHECKING

from kvctl.cli.session import Session
from kvctl.errors import Cancelled

if TYPE_CHECKING:
    from kvctl.jetstream.api import Api
    from kvctl.topology.replicas import Replica


async def offer(session: Session, api: "Api", stream: str) -> None:
    """Ask for each mirror of the stream that holds something from before; where nobody can be asked, warn."""
    for replica in await _stale(api, stream):
        text = f"Mirror `{replica.name}` may hold what the bucket held before"
        if session.interactive and _wanted(session, text):
            await _make_anew(session, replica)
        else:
            session.warn(f"{text}: `kvctl topology audit {replica.name} --repair` makes it anew")


async def _stale(api: "Api", stream: str) -> "list[Replica]":
    from kvctl.topology import replicas
    from kvctl.topology.incarnations import lineage
    from kvctl.topology.world import survey

    mirrors = [
        replica
        for replica in replicas.in_view(await survey({"": api}))
        if str(replica.kind) == "mirror" and replica.links[0].source["name"] == stream
    ]
    return [item for item in mirrors if (origin := item.links[0].origin) and not lineage(item.info, origin).same]


def _wanted(session: Session, text: str) -> bool:
    try:
        session.confirm(f"{text}. Make it anew?")
    except Cancelled:
        return False
    return True


async def _make_anew(session: Session, replica: "Replica") -> None:
    from kvctl.topology import repair

    with session.progress(f"Filling {replica.name}") as progress:
        await repair.carry_out(repair.Repair(replica), advance=progress.advance)
    session.note(f"Made mirror `{replica.name}` anew")
