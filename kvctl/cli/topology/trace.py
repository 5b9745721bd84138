"""`kvctl topology trace`: where a key goes through replication, and where it came from."""

from typing import Any

from kvctl.cli.app.command import command
from kvctl.cli.app.options import BucketName, KeyName
from kvctl.cli.app.session import Session
from kvctl.cli.records import TRACE, TRACE_TREE
from kvctl.cli.topology.file import OptionalFile, read_file
from kvctl.cli.topology.graph import painted
from kvctl.errors import KeyNotFound, UnreachableError
from kvctl.kv import names
from kvctl.phrases import quoted
from kvctl.render.escapes import utf8
from kvctl.render.view import Column, View, document
from kvctl.topology.views import drawing, live_trace
from kvctl.topology.views import trace as views_trace


@command(
    "topology trace",
    examples=[
        "kvctl topology trace ORDERS NEW.7",
        "kvctl topology trace EDGE orders.new.7 -o json",
        "kvctl topology trace ORDERS NEW.7 -f topology.yaml",
    ],
    see=["help topologies", "topology graph", "topology audit"],
    prints=(TRACE, TRACE_TREE),
)
async def trace(session: Session, bucket: BucketName, key: KeyName, file: OptionalFile = None) -> int | None:
    """Show where a key goes through replication, and where it came from.

    Each replica is shown with the key's name there, the filter or map that matches it, its revision, and its state. If
    a replica lacks the key, the state is the reason: `filtered out`, `overwritten` by another origin, another key or a
    client, `expired`, `deleted`, `on its way`, `link down`, `offline`, `stale` after its origin was recreated, or
    `missing` although it has caught up. `kept` is an entry that the origin no longer has, `absent` means that there is
    nothing to replicate, and `unknown` that a side cannot be read.

    Origins are found through the reverse of filters and maps. If several keys land in one place, each is shown; the
    entry itself names the one that it came from.

    Streams are read at their leaders, in this account and in the domains that it replicates from. If no entry is found
    and a stream that may hold one does not answer, the exit code is 5. With --file, the route is computed from the
    file, without a server and without states.
    """
    names.check_bucket(bucket), names.check_key(key)
    found = await _trace(session, bucket, key, file)
    if found.offline:
        session.warn(f"Offline streams that may replicate the key: {quoted(found.offline)}")
    if session.options.output in ("json", "yaml"):
        session.show(document(found.to_json()))
    elif session.output == "table":
        session.write(utf8("".join(painted(line, color=session.terminal.colored) for line in views_trace.text(found))))
    else:
        session.show(View(columns=_COLUMNS, rows=_rows(found)))
    return None if found.known else UnreachableError.exit_code


async def _trace(session: Session, bucket: str, key: str, file: str | None) -> "views_trace.KeyTrace":
    if file is not None:
        return views_trace.predicted(drawing.of_topology(read_file(session, file)), bucket, key)
    found = await live_trace.trace({"": (await session.client()).api}, bucket, key)
    if not found.exists:
        raise KeyNotFound(
            f"Key `{key}` exists neither in `{bucket}` nor in its origins and replicas",
            hint=f"See where it would go with `kvctl topology export | kvctl topology trace {bucket} {key} -f -`",
        )
    return found


def _rows(found: "views_trace.KeyTrace") -> list[dict[str, Any]]:
    return [
        {"role": role, "depth": depth, "via": via, **item.to_json()}
        for role, depth, via, item in views_trace.flat(found)
    ]


_COLUMNS = tuple(
    Column(name)
    for name in (
        "role", "depth", "via", "name", "key", "state", "revision", "evidence", "stream", "kind", "context", "domain",
        "api", "cluster", "subject", "created", "operation", "keys", "prefix", "map", "transforms", "end",
    )
)  # fmt: skip
