"""`kvctl topology render` as a process."""

import json
from pathlib import Path

from syrupy.assertion import SnapshotAssertion

from tests.cli.conftest import Run

ADR = """
version: 1
buckets:
  ORDERS: {history: 5}
mirrors:
  MIRROR_ORDERS_NYC: {origin: ORDERS, cluster: nyc}
aggregates:
  NEW_ORDERS: {origins: [{bucket: ORDERS, keys: ["NEW.>"]}]}
"""


def test_render_prints_the_adr_examples(run: Run, tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    file = tmp_path / "topology.yaml"
    file.write_text(ADR)
    result = run("topology", "render", "-f", str(file))
    assert [stream["name"] for stream in json.loads(result.out)] == ["KV_ORDERS", "MIRROR_ORDERS_NYC", "KV_NEW_ORDERS"]
    assert run("topology", "render", "-f", "-", "-o", "yaml", stdin=ADR.encode()) == snapshot


def test_render_of_an_invalid_file_is_a_usage_error_with_its_line(
    run: Run, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    wrong = ADR.replace("keys", "key")
    assert run("topology", "render", "-f", "-", stdin=wrong.encode()) == snapshot
    assert run("topology", "render", "-f", str(tmp_path / "none.yaml")).exit_code == 2
    assert run("topology", "render").exit_code == 2
