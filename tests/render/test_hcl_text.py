"""Terraform's syntax as text: read back as the same data, whatever the names and texts."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kvctl.documents import hcl
from kvctl.render.hcl_text import dump_resources

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_-]{0,8}", fullmatch=True).filter(
    lambda name: name not in ("provider", "depends_on")
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["${a}", "%{b}", "$${", '"\\\n']
)
PLAIN = TEXTS | st.integers(-(2**63), 2**63) | st.booleans()
ARGUMENTS: Any = PLAIN | st.lists(PLAIN, max_size=3) | st.dictionaries(TEXTS, PLAIN, max_size=3)
BODIES = st.recursive(
    st.dictionaries(NAMES, ARGUMENTS, max_size=4),
    lambda inside: st.dictionaries(NAMES, ARGUMENTS | st.lists(inside, min_size=1, max_size=2), max_size=4),
    max_leaves=4,
)


@given(st.dictionaries(NAMES, BODIES, min_size=1, max_size=3))
@settings(max_examples=100, deadline=None)
def test_written_resources_are_read_back(bodies):
    text = dump_resources({"resource": {"kind": hcl.escaped(bodies)}})
    found = hcl.parse(text.encode(), "f.tf")
    assert found == {"resource": {"kind": {label: [body] for label, body in bodies.items()}}}


def test_resources_look_as_terraform_formats_them():
    sources = [{"name": "B", "rule": [{"a": ""}]}, {"name": "C"}]
    body: dict[str, Any] = {"name": "A", "max_age": 5, "metadata": {"a b": "c", "d": "e"}, "subjects": ["x", "y"]}
    body |= {"provider": "jetstream.hub", "depends_on": ["jetstream_stream.B"], "source": sources}
    assert dump_resources({"resource": {"jetstream_stream": {"A": body, "B": {}}}}) == (
        'resource "jetstream_stream" "A" {\n'
        '  name    = "A"\n'
        "  max_age = 5\n"
        "  metadata = {\n"
        '    "a b" = "c"\n'
        '    d     = "e"\n'
        "  }\n"
        '  subjects   = ["x", "y"]\n'
        "  provider   = jetstream.hub\n"
        "  depends_on = [jetstream_stream.B]\n"
        "\n"
        "  source {\n"
        '    name = "B"\n'
        "\n"
        "    rule {\n"
        '      a = ""\n'
        "    }\n"
        "  }\n"
        "\n"
        "  source {\n"
        '    name = "C"\n'
        "  }\n"
        "}\n"
        "\n"
        'resource "jetstream_stream" "B" {\n'
        "}\n"
    )
