"""`kvctl topology export` as a process."""

import json

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvctl.cli.topology.export import as_yaml
from kvctl.documents import parser
from kvctl.documents.variables import escaped
from kvctl.server import run_server
from kvctl.topology.views.export import TopologyExport
from tests.support.raw import RawClient

NAMES = st.text("abcONonyes-_0123456789", min_size=1, max_size=12)
FIELDS = st.dictionaries(
    st.sampled_from(["description", "history", "metadata", "tags", "origins"]),
    st.text()
    | st.integers()
    | st.booleans()
    | st.lists(st.text(), max_size=3)
    | st.dictionaries(st.text(), st.text(), max_size=3)
    | st.lists(st.dictionaries(st.text(), st.text() | st.lists(st.text(), max_size=2), max_size=3), max_size=3),
)


@example(resources={"A": {"description": "\n"}, "B": {"description": "a\n\n"}}, texts=[], terminal=False)
@given(st.dictionaries(NAMES, FIELDS, max_size=3), st.lists(st.text(), max_size=2), st.booleans())
@settings(max_examples=60, deadline=None)
def test_exported_yaml_round_trips_any_names_and_texts(resources, texts, terminal):
    document = {"version": 1, "buckets": resources} if resources else {"version": 1}
    remarks = dict.fromkeys(resources, texts)
    written = as_yaml(TopologyExport(document, remarks, dict.fromkeys(texts, "a\nreason: b")), terminal=terminal)
    assert parser.parse(written, "f.yaml").data == escaped(document)
    assert yaml.safe_load(written) == escaped(document)


@pytest.fixture
def layout(run):
    """Start a server with a bucket, a mirror, an aggregate and a stream that no file describes."""
    with run_server(name="own") as server, RawClient(server.url) as raw:
        for line in (
            "bucket add ORDERS --history 5 --ttl 30d --marker-ttl 1h --description on",
            "bucket add STOCK",
            "mirror create ORDERS_COPY --origin ORDERS",
            "aggregate create EDGE --origin bucket=ORDERS,keys=NEW.>,prefix=orders.new --origin STOCK",
        ):
            assert run(*line.split(), "-s", server.url).exit_code == 0
        raw.create_bucket("ODD", duplicate_window=60 * 10**9)
        raw.api("STREAM.CREATE.EVENTS", {"name": "EVENTS", "subjects": ["e.>"]})
        yield server


def test_export_writes_yaml_and_names_what_it_leaves_out(run, layout, snapshot):
    assert run("topology", "export", "-s", layout.url) == snapshot
    assert run("topology", "export", "EDGE", "-o", "json", "-s", layout.url) == snapshot
    names = run("topology", "export", "-o", "name", "-q", "-s", layout.url).out
    assert names.split() == ["ODD", "ORDERS", "STOCK", "ORDERS_COPY", "EDGE"]
    everything = json.loads(run("topology", "export", "-o", "json", "-s", layout.url).out)
    assert everything == parser.parse(run("topology", "export", "-s", layout.url).stdout, "f.yaml").data
    assert run("topology", "export", "ORDER", "-s", layout.url).exit_code == 3
    assert run("topology", "export", "EVENTS", "-s", layout.url).exit_code == 1


def test_export_escapes_control_characters_on_a_terminal(run, server, raw, unique):
    name = unique("TEXT")
    raw.create_bucket(name, description="\x1b[31mred\u202e", metadata={"\x1b[0m": "\u2028"})
    shown = run("topology", "export", name, "-s", server.url, tty=True)
    assert "\x1b" not in shown.out
    assert "\u202e" not in shown.out
    fields = parser.parse(shown.stdout, "f.yaml").data["buckets"][name]
    assert fields == {"description": "\x1b[31mred\u202e", "metadata": {"\x1b[0m": "\u2028"}}
