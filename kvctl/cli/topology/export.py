"""`kvctl topology export` and `schema`: files from live servers, and their JSON Schema."""

from collections.abc import Iterable, Mapping
from textwrap import indent
from typing import Annotated

from kvctl.cli.app.command import command
from kvctl.cli.app.options import argument, bucket_names
from kvctl.cli.app.session import Session
from kvctl.cli.records import ANY, NAME
from kvctl.documents import variables
from kvctl.phrases import quoted
from kvctl.render import escapes, yaml_text
from kvctl.render.fields import columns
from kvctl.render.view import View, document
from kvctl.topology.model import file
from kvctl.topology.survey import inventory
from kvctl.topology.views import export as views_export

Names = Annotated[list[str] | None, argument("BUCKET", "Buckets, mirrors and aggregates [default: all]", bucket_names)]


@command(
    "topology export",
    examples=[
        "kvctl topology export > topology.yaml",
        "kvctl topology export ORDERS ORDERS_NYC",
        "kvctl topology export -o json | jq '.buckets | keys'",
    ],
    see=["help deploying", "topology plan", "topology graph"],
    prints=(NAME, ANY),
)
async def export(session: Session, names: Names = None) -> None:
    """Write a topology file of the existing buckets and replicas.

    The file is YAML, also in a pipe. It holds the settings that differ from the defaults. Applied elsewhere it creates
    the same topology, and here `kvctl topology plan` finds nothing to change. With names, only those buckets and
    replicas are exported: a mirror or an aggregate without its origins, a bucket without its mirrors.

    Tables, repositories, streams that are not buckets, and settings that a file cannot express are left out. Warnings
    and comments name them.
    """
    found = await inventory.survey({"": (await session.client()).api})
    show_exported(session, views_export.export(found, names or ()), found.places[""].unreachable)


@command(
    "topology schema",
    examples=["kvctl topology schema > topology.schema.json"],
    see=["help deploying", "topology plan", "topology graph"],
    prints=(ANY,),
)
def schema(session: Session) -> None:
    """Print the JSON Schema of topology files.

    An editor uses the schema to complete and check a file that begins with

        # yaml-language-server: $schema=topology.schema.json
    """
    if session.options.output is None:
        session.output = "json"
    session.show(document(file.json_schema()))


def show_exported(session: Session, exported: "views_export.TopologyExport", unreachable: Iterable[str] = ()) -> None:
    """Print a topology file, as YAML unless `--output` is given, and warnings of what it leaves out."""
    if session.output in ("json", "ndjson"):
        session.show(document(variables.escaped(exported.document)))
    elif session.output == "name":
        inside = [
            name for section in ("buckets", "mirrors", "aggregates") for name in exported.document.get(section, ())
        ]
        session.show(View(columns=columns("name"), rows=[{"name": name} for name in inside]))
    else:
        session.write(as_yaml(exported, terminal=session.terminal.is_terminal))
    for warning in _warnings(exported, unreachable):
        session.warn(warning)


def as_yaml(exported: "views_export.TopologyExport", *, terminal: bool) -> bytes:
    """Write the file as YAML, with comments on what it cannot express."""
    text = ""
    for section, value in exported.document.items():
        if not isinstance(value, Mapping):
            text += f"{section}: {value}\n"
            continue
        text += f"\n{section}:\n"
        for name, fields in value.items():
            if remarks := exported.remarks.get(name):
                text += _comment([f"not expressed: {', '.join(remarks)}"])
            text += indent(yaml_text.dump_short(variables.escaped({name: fields})), "  ", lambda line: line != "\n")
    if exported.left_out:
        text += "\n" + _comment((f"left out: {name}, {reason}" for name, reason in exported.left_out.items()), "")
    return escapes.utf8(escapes.escape_unicode(text) if terminal else text)


def _comment(lines: Iterable[str], margin: str = "  ") -> str:
    return "".join(f"{margin}# {_printable(line)}\n" for line in lines)


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _warnings(exported: "views_export.TopologyExport", unreachable: Iterable[str]) -> list[str]:
    """Describe what the file leaves out, a line for each reason."""
    reasons: dict[str, list[str]] = {}
    for name, reason in exported.left_out.items():
        reasons.setdefault(reason, []).append(name)
    left_out = [f"Left out, {reason}: {quoted(names)}" for reason, names in reasons.items()]
    remarks = [
        f"`{name}` has {_printable(', '.join(texts))}, which a file cannot express"
        for name, texts in exported.remarks.items()
    ]
    hidden = list(unreachable)
    return [*left_out, *remarks, *([f"Left out, servers do not answer: {quoted(hidden)}"] if hidden else [])]
