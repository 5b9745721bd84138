"""JSON Schema of the topology file, for editors and other tools, generated from the reader's fields. [pure]

Everything that the reader accepts is valid. Only the reader checks what depends on servers or on several values.
"""

from __future__ import annotations

from kvctl.documents.record import Schema
from kvctl.topology.file.document import ROOT
from kvctl.topology.file.fields import CONTEXT, ORIGIN, SECTIONS


def json_schema() -> Schema:
    """Return the schema, in draft 2020-12."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "kvctl topology",
        "description": "NATS key-value buckets, their mirrors and aggregates, see `kvctl help topologies`",
        **ROOT.schema(),
        "$defs": {
            "context": CONTEXT.schema(),
            **{section: record.schema() for section, record in SECTIONS.items()},
            "origin": ORIGIN.schema(),
        },
    }
