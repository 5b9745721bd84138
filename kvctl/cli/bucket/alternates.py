"""`kvctl bucket alternates`: the streams that can answer reads of a bucket, and the one that does."""

from typing import Any

from kvctl.cli.app.command import command
from kvctl.cli.app.options import BucketName
from kvctl.cli.app.session import Session
from kvctl.cli.records import ALTERNATE
from kvctl.render.fields import columns
from kvctl.render.view import Column, View
from kvctl.topology.health import overview

NOT_REPORTED = "This server reports no alternates (only clusters do); any reachable mirror may answer reads"


@command(
    "bucket alternates",
    examples=["kvctl bucket alternates ORDERS", "kvctl bucket alternates ORDERS -o name | head -1"],
    see=["bucket show", "mirror create", "help topologies"],
    prints=(ALTERNATE,),
)
async def alternates(session: Session, bucket: BucketName) -> None:
    """List the streams that can answer reads of a bucket, nearest first.

    Clients read a bucket by its name, and the nearest stream answers: the origin or one of its mirrors. The order is
    that of the server, seen from the one that kvctl is connected to. HERE marks the streams that answered test reads,
    with the shortest round trip; an empty bucket has no entry to read.

    STATE and BEHIND are those of `kvctl topology status`: how far a mirror is behind its origin, and so how old a read
    may be. Servers outside of clusters report no alternates; then the origin and the mirrors in view are listed.
    """
    found = await overview.inspect((await session.client()).api, bucket)
    empty = "No stream answers reads here"
    view = View(columns=COLUMNS, tsv=ALTERNATE.columns, rows=rows(found.reads), name="served_by", empty=empty)
    session.show(view)
    if not found.reads.reported and found.reads.alternates:
        session.note(NOT_REPORTED, always=True)


def rows(found: "overview.Reads") -> list[dict[str, Any]]:
    """Return the JSON objects of alternates, nearest first."""
    return [
        {"order": order, **{name: getattr(item, name) for name in ALTERNATE.fields[1:-1]}, "name": item.stream}
        for order, item in enumerate(found.alternates, 1)
    ]


def _round_trip_text(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"


COLUMNS = columns(
    "order served_by role cluster domain leader state entries_behind last_seen round_trip here",
    order="#",
    entries_behind=Column("entries_behind", "Behind", right=True, keep=True),
    round_trip=Column("round_trip", text=_round_trip_text, right=True),
    here=Column("here", text=lambda here: "yes" if here else "", keep=True, style="green"),
)
