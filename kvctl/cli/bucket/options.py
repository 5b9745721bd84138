"""The settings of a bucket as options, and what their texts mean."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Annotated, Any

import typer

from kvctl.cli.app.parameters import duration, size
from kvctl.errors import UsageError

History = Annotated[int | None, typer.Option("--history", metavar="N", help="Revisions kept of each key, 1 to 64")]
Ttl = Annotated[timedelta | None, duration("--ttl", help="Entries expire at this age")]
MarkerTtl = Annotated[
    timedelta | None,
    duration("--marker-ttl", help="Allow keys a ttl of their own; what expires leaves a marker for this long"),
]
Replicas = Annotated[int | None, typer.Option("--replicas", metavar="N", help="Servers that hold the data, 1 to 5")]
Storage = Annotated[
    str | None,
    typer.Option(
        "--storage",
        metavar="KIND",
        help="`file` or `memory`",
        autocompletion=lambda incomplete: [kind for kind in ("file", "memory") if kind.startswith(incomplete)],
    ),
]
MaxValueSize = Annotated[int | None, size("--max-value-size", help="Largest value, headers included")]
MaxBytes = Annotated[int | None, size("--max-bytes", help="Largest size of the whole bucket")]
Cluster = Annotated[str | None, typer.Option("--cluster", metavar="NAME", help="Cluster to place it in")]
Tags = Annotated[
    list[str] | None, typer.Option("--tag", metavar="TAG", help="Tag that its servers must have; repeatable")
]
Metadata = Annotated[
    list[str] | None, typer.Option("--metadata", metavar="KEY=VALUE", help="Entry of its metadata; repeatable")
]
Description = Annotated[str | None, typer.Option("--description", metavar="TEXT", help="What it is for")]
Republish = Annotated[
    str | None, typer.Option("--republish", metavar="SRC=DEST", help="Publish what is stored again, under DEST")
]
HeadersOnly = Annotated[
    bool | None, typer.Option("--republish-headers-only", help="Republish headers without values", show_default=False)
]


def settings(**given: Any) -> dict[str, Any]:
    """What was given, as fields of a BucketConfig. Raises UsageError for texts that mean nothing."""
    found = {name: value for name, value in given.items() if value is not None}
    if "metadata" in found:
        found["metadata"] = parse_metadata(found["metadata"])
    if "tags" in found:
        found["tags"] = tuple(found["tags"])
    if "republish" in found:
        from kvctl.kv.config_edit import Republish as Republishing

        source, equals, destination = found["republish"].partition("=")
        if not equals:
            raise UsageError(f"`{found['republish']}` is not SRC=DEST", hint="As in `$KV.orders.>=copies.>`")
        found["republish"] = Republishing(source, destination, bool(found.pop("republish_headers_only", False)))
    return found


def parse_metadata(texts: Iterable[str]) -> dict[str, str]:
    """KEY=VALUE texts as a mapping. Raises UsageError."""
    metadata = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"`{text}` is not KEY=VALUE", hint="As in `owner=team-a`")
        metadata[name] = value
    return metadata
