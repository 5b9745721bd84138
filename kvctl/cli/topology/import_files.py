"""`kvctl topology import`: topology files from the files of other tools."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvctl.cli.app.command import command, group
from kvctl.cli.app.parameters import one_of
from kvctl.cli.app.session import Session
from kvctl.cli.topology.export import show_exported
from kvctl.errors import UsageError
from kvctl.phrases import quoted

if TYPE_CHECKING:
    from kvctl.topology.formats.placed import SourceFile

app = group()

FORMATS = ("nats", "nack", "terraform")
_ENDINGS = {"nats": (".json",), "nack": (".yaml", ".yml", ".json"), "terraform": (".tf", ".tf.json")}
"""Names of the files that are read from a directory."""


@command(
    app,
    "import",
    examples=[
        "kvctl topology import --format nats streams > topology.yaml",
        "kvctl topology import --format nack streams.yaml",
        "kubectl get streams.jetstream.nats.io -o yaml | kvctl topology import --format nack -",
        "kvctl topology import --format terraform infra > topology.yaml",
    ],
    see=["help topologies", "topology export", "topology render", "topology plan"],
)
def import_(
    session: Session,
    paths: Annotated[list[str], typer.Argument(metavar="PATH", help="Files and directories, `-` for standard input")],
    format: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help="nats, nack or terraform", autocompletion=one_of(*FORMATS))
    ],
) -> None:
    """Convert files of another tool into a topology file.

    The file is YAML, like the output of `topology export`, which reads running servers. It holds buckets, mirrors and
    aggregates. Other streams, other resources, and settings that a file cannot express are left out. Warnings and
    comments name them.

    nats reads stream configurations in JSON, as `nats stream add --config` takes and `nats stream info` prints. The
    directories in a directory become contexts.

    nack reads `Stream` and `KeyValue` resources of NACK, in YAML or JSON. Accounts and domains become contexts.

    terraform reads resources of the provider nats-io/jetstream, in `.tf` and `.tf.json` files. Provider aliases become
    contexts. Only literal values are read: a resource with variables or functions is left out.
    """
    from kvctl.topology.formats.imported import READERS, topology_file

    if format not in FORMATS:
        raise UsageError(f"`{format}` is not a format of `topology import`", hint=f"Use one of {quoted(FORMATS)}")
    files = [file for path in paths for file in _files(session, path, format)]
    show_exported(session, topology_file(READERS[format](files)))


def _files(session: Session, path: str, format: str) -> "Iterator[SourceFile]":
    """Read a file, or the files of a directory. Raises UsageError."""
    folder = Path(path)
    if path == "-" or not folder.is_dir():
        yield from _documents(session, path, format, "")
        return
    found = [(one, "") for one in sorted(folder.iterdir()) if one.name.endswith(_ENDINGS[format]) and one.is_file()]
    if format == "nats":
        found += [(one, one.parent.name) for one in sorted(folder.glob("*/*.json")) if one.is_file()]
    if not found:
        raise UsageError(
            f"`{path}` has no file of the format `{format}`", hint=f"Their names end with {quoted(_ENDINGS[format])}"
        )
    for one, place in found:
        yield from _documents(session, str(one), format, place)


def _documents(session: Session, path: str, format: str, place: str) -> "Iterator[SourceFile]":
    from kvctl.documents import hcl, parser
    from kvctl.topology.formats.placed import SourceFile

    content, name = session.read_input(path), "standard input" if path == "-" else path
    if format == "nack":
        yield from (SourceFile(name, document.data) for document in parser.parse_all(content, name))
    elif format == "nats":
        yield SourceFile(name, parser.parse(content, name).data, place)
    elif name.endswith(".json") or content.lstrip()[:1] == b"{":
        yield SourceFile(name, hcl.from_json(parser.parse(content, name).data))
    else:
        yield SourceFile(name, hcl.parse(content, name))
