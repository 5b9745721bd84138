"""`kvctl topology render` as a process."""

import json

import pytest

ADR = """
version: 1
buckets:
  ORDERS: {history: 5}
mirrors:
  MIRROR_ORDERS_NYC: {origin: ORDERS, cluster: nyc}
aggregates:
  NEW_ORDERS: {origins: [{bucket: ORDERS, keys: ["NEW.>"]}]}
"""


def test_render_prints_the_adr_examples(run, tmp_path, snapshot):
    file = tmp_path / "topology.yaml"
    file.write_text(ADR)
    result = run("topology", "render", "-f", str(file))
    assert [stream["name"] for stream in json.loads(result.out)] == ["KV_ORDERS", "MIRROR_ORDERS_NYC", "KV_NEW_ORDERS"]
    assert run("topology", "render", "-f", "-", "-o", "yaml", stdin=ADR.encode()) == snapshot


def test_render_of_an_invalid_file_is_a_usage_error_with_its_line(run, snapshot):
    wrong = ADR.replace("keys", "key")
    assert run("topology", "render", "-f", "-", stdin=wrong.encode()) == snapshot


def test_render_in_the_formats_of_other_tools(run, snapshot):
    """`views/test_deployers` compares the streams that either format describes; here are both texts."""
    render = ("topology", "render", "-f", "-", "--format")
    assert run(*render, "nack", stdin=ADR.encode()) == snapshot
    made = json.loads(run(*render, "terraform", stdin=ADR.encode()).out)["resource"]["jetstream_stream"]
    assert {body["name"] for body in made.values()} == {"KV_ORDERS", "MIRROR_ORDERS_NYC", "KV_NEW_ORDERS"}


LOSSY = """
version: 1
contexts: {edge: {url: nats://h:4222, domain: leaf}}
buckets:
  A: {ttl: 1500ms, in: edge}
  B: {republish: "a.>=b.>", republish_headers_only: true, tags: [ssd]}
mirrors:
  M: {origin: B, origin_api: HUB.API}
"""


@pytest.mark.parametrize("format", ["nack", "terraform"])
def test_setting_that_the_format_lacks_is_refused_unless_forced(run, snapshot, format):
    render = ("topology", "render", "-f", "-", "--format", format)
    assert run(*render, stdin=LOSSY.encode()) == snapshot
    forced = run(*render, "--force", "lossy-format", "-q", stdin=LOSSY.encode())
    assert (forced.exit_code, "the history and ttl that `M` inherits from it is unknown" in forced.err) == (0, True)
    assert ("`edge`" in forced.err, "error" in forced.err) == (True, False)
    assert all(name in forced.out for name in ("KV_A", "KV_B", "name: M" if format == "nack" else '"M"'))


def test_render_writes_a_file_for_each_stream(run, tmp_path, snapshot):
    folder = tmp_path / "streams"
    render = ("topology", "render", "-f", "-", "--format", "nats")
    assert run(*render, "--to", str(folder), stdin=LOSSY.encode()) == snapshot
    written = sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
    assert written == ["KV_B.json", "M.json", "edge", "edge/KV_A.json"]
    one = run(*render, stdin=b"version: 1\nbuckets: {B: {}}")
    assert run(*render, "--to", str(folder), stdin=b"version: 1\nbuckets: {B: {}}") == snapshot
    assert (folder / "KV_B.json").read_text() == one.out
    (tmp_path / "file").touch()
    assert run(*render, "--to", str(tmp_path / "file"), stdin=ADR.encode()).exit_code == 1


def test_render_options_that_cannot_be_combined_are_usage_errors(run, snapshot):
    for options in ("--format toml", "--format nats", "--format nack -o tsv", "--to x", "--force lossy"):
        result = run("topology", "render", "-f", "-", *options.split(), stdin=ADR.encode())
        assert f"{options}: {result.exit_code}, {' '.join(f'{result.out}{result.err}'.split())}" == snapshot
