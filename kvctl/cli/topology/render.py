"""`kvctl topology render`, and the commands of the group."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

from kvctl import atomic_file
from kvctl.cli.app.command import command
from kvctl.cli.app.options import Force, one_of, option
from kvctl.cli.app.session import Session
from kvctl.cli.records import ANY
from kvctl.cli.topology.file import GivenFile, OptionalFile, one_file, read_file
from kvctl.errors import KvctlError, UsageError
from kvctl.phrases import quoted
from kvctl.render import escapes, formats, yaml_text
from kvctl.render.fields import columns
from kvctl.render.view import View, document
from kvctl.topology.hazards import hazards
from kvctl.topology.model import file as model_file
from kvctl.topology.plan import desired
from kvctl.topology.views import deployers

FORMATS = ("json", "nats", "nack", "terraform")
_SYNTAXES = {"nats": ("json",), "nack": ("yaml", "json"), "terraform": ("json",)}
"""Values of `--output` by format."""


@command(
    "topology render",
    examples=[
        "kvctl topology render -f topology.yaml",
        "kvctl topology render -f topology.yaml --format nats --to streams",
        "kvctl topology render -f topology.yaml --format nack | kubectl apply -f -",
        "kvctl topology render -f topology.yaml --format terraform > streams.tf.json",
    ],
    see=["help deploying", "topology export", "topology apply"],
    prints=(ANY,),
    forces=lambda: (deployers.LOSSY_FORMAT,),
)
def render(
    session: Session,
    given: GivenFile = None,
    file: OptionalFile = None,
    format: Annotated[str, option("--format", "FORMAT", "json, nats, nack or terraform", one_of(*FORMATS))] = "json",
    to: Annotated[Path | None, option("--to", "DIR", "Directory for the files of the format `nats`")] = None,
    force: Force = None,
) -> None:
    """Print the stream configurations that a file describes, without a server.

    The output is an array in the server's own JSON: exactly what `topology apply` creates on empty servers, origins
    before their replicas. If an origin is not in the file, the history and ttl that its replicas inherit are unknown; a
    warning names each.

    Other formats are for tools that create the same streams. nats is one JSON file a stream, for `nats stream add
    --config FILE`. --to writes the files and prints their paths, in the order in which to create the streams. Without
    it the file may describe one stream only.

    nack is a `Stream` resource for each stream, for NACK, the JetStream controller for Kubernetes. With `-o json` it is
    a `List`. terraform is resources of the provider nats-io/jetstream in Terraform's JSON syntax, for a file
    `*.tf.json`.

    A setting that a format cannot express is refused by name, unless --force lossy-format is given.
    """
    _check(session, format, to, force)
    topology = read_file(session, one_file(given, file, "render"))
    found = desired.render(topology)
    if format == "json":
        session.output = session.options.output or "json"
        session.show(View(columns=columns("name subjects mirror sources"), rows=found.streams))
    else:
        streams = [
            deployers.PlacedStream(config, place) for config, place in zip(found.streams, found.places, strict=True)
        ]
        _show(session, topology, streams, format, to, force)
    for warning in found.warnings:
        session.warn(warning)


def _check(session: Session, format: str, to: Path | None, force: list[str] | None) -> None:
    """Raise UsageError for options that cannot be combined."""
    if format not in FORMATS:
        raise UsageError(f"`{format}` is not a format of `topology render`", hint=f"Use one of {quoted(FORMATS)}")
    output, syntaxes = session.options.output, _SYNTAXES.get(format, ())
    if output is not None and syntaxes and output not in syntaxes:
        allowed = " or ".join(f"`-o {name}`" for name in syntaxes)
        raise UsageError(f"`--format {format}` cannot be combined with `-o {output}`", hint=f"Use {allowed}")
    if to is not None and format != "nats":
        raise UsageError("`--to` requires `--format nats`", hint="Redirect the output: `> FILE`")


def _show(
    session: Session,
    topology: "model_file.Topology",
    streams: "list[deployers.PlacedStream]",
    format: str,
    to: Path | None,
    force: list[str] | None,
) -> None:
    """Print or write the streams in the format of another tool. Raises HazardRefused."""
    lost = deployers.lossy(format, streams, topology.contexts)
    hazards.refuse(lost, force, f"The format `{format}` cannot express the complete topology")
    if format == "nats":
        _show_files(session, streams, to)
        return
    if format == "nack":
        resources = deployers.nack(streams, topology.contexts)
        _write_resources(session, resources)
        warnings = deployers.nack_warnings(resources)
    else:
        configuration = deployers.terraform(streams, topology.contexts)
        session.output = "json"
        session.show(document(configuration))
        warnings = deployers.terraform_warnings(configuration)
    for warning in warnings:
        session.warn(warning)


def _write_resources(session: Session, resources: list[dict[str, Any]]) -> None:
    """Print resources of Kubernetes: YAML documents, or a list in JSON."""
    if session.options.output == "json":
        session.show(document({"apiVersion": "v1", "kind": "List", "items": resources}))
        return
    text = "---\n".join(yaml_text.dump(resource) for resource in resources)
    session.write(escapes.utf8(escapes.escape_unicode(text) if session.terminal.is_terminal else text))


def _show_files(session: Session, streams: "list[deployers.PlacedStream]", to: Path | None) -> None:
    """Write one file for each stream, or print the only one."""
    if to is None:
        if len(streams) != 1:
            raise UsageError(
                f"`nats stream add` takes one file for each stream, and the file describes {len(streams)}",
                hint="Write them into a directory: `--to DIR`",
            )
        session.output = "json"
        session.show(document(streams[0].config))
        return
    paths = [to / deployers.file_name(stream) for stream in streams]
    _write_files(zip(paths, streams, strict=True))
    session.write("".join(f"{path}\n" for path in paths).encode("utf-8", "surrogateescape"))
    there = {path for folder in {path.parent for path in paths} for path in folder.glob("*.json")}
    if others := sorted(there - {*paths}):
        session.warn(f"Files in `{to}` that are not part of this topology: {quoted(map(str, others))}")


def _write_files(files: "Iterable[tuple[Path, deployers.PlacedStream]]") -> None:
    for path, stream in files:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            text = formats.JsonWriter(document(stream.config)).rows([stream.config])
            atomic_file.replace(path, text, mode=atomic_file.PUBLIC)
        except OSError as error:
            raise KvctlError(f"Cannot write `{path}`: {error.strerror}") from None
