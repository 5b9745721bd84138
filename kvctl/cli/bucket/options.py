"""Options for the settings of a bucket, and their values as fields of `BucketConfig`."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Annotated, Any

import typer

from kvctl.cli.app.parameters import duration, one_of, size
from kvctl.errors import UsageError

History = Annotated[int | None, typer.Option("--history", metavar="N", help="Revisions to keep per key, 1 to 64")]
Ttl = Annotated[timedelta | None, duration("--ttl", help="Age at which entries expire")]
MarkerTtl = Annotated[
    timedelta | None,
    duration("--marker-ttl", help="Allow per-key TTLs, and keep markers of expired keys for this long"),
]
Replicas = Annotated[int | None, typer.Option("--replicas", metavar="N", help="Number of stream replicas, 1 to 5")]
Storage = Annotated[
    str | None,
    typer.Option(
        "--storage",
        metavar="KIND",
        help="Storage: `file` or `memory`",
        autocompletion=one_of("file", "memory"),
    ),
]
MaxValueSize = Annotated[int | None, size("--max-value-size", help="Maximum size of a value, including headers")]
MaxBytes = Annotated[int | None, size("--max-bytes", help="Maximum size of the bucket")]
Cluster = Annotated[str | None, typer.Option("--cluster", metavar="NAME", help="Cluster to place the stream in")]
Tags = Annotated[
    list[str] | None, typer.Option("--tag", metavar="TAG", help="Server tag required for placement; repeatable")
]
Metadata = Annotated[
    list[str] | None, typer.Option("--metadata", metavar="KEY=VALUE", help="Metadata entry; repeatable")
]
Description = Annotated[str | None, typer.Option("--description", metavar="TEXT", help="Description of the bucket")]
Republish = Annotated[
    str | None, typer.Option("--republish", metavar="SRC=DEST", help="Republish stored messages of subject SRC to DEST")
]
HeadersOnly = Annotated[
    bool | None,
    typer.Option("--republish-headers-only", help="Republish only headers, without values", show_default=False),
]


def settings(**given: Any) -> dict[str, Any]:
    """Convert option values to fields of a BucketConfig. Raises UsageError for texts that cannot be parsed."""
    found = {name: value for name, value in given.items() if value is not None}
    if "metadata" in found:
        found["metadata"] = parse_metadata(found["metadata"])
    if "tags" in found:
        found["tags"] = tuple(found["tags"])
    if "republish" in found:
        from kvctl.kv.config_edit import Republish as Republishing

        source, equals, destination = found["republish"].partition("=")
        if not equals:
            raise UsageError(f"`{found['republish']}` is not SRC=DEST", hint="Example: `$KV.orders.>=copies.>`")
        found["republish"] = Republishing(source, destination, bool(found.pop("republish_headers_only", False)))
    return found


def parse_metadata(texts: Iterable[str]) -> dict[str, str]:
    """Parse KEY=VALUE texts into a mapping. Raises UsageError."""
    metadata = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"`{text}` is not KEY=VALUE", hint="Example: `owner=team-a`")
        metadata[name] = value
    return metadata
