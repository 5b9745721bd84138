"""`topology plan` and `topology apply` on the command line."""

import json
from collections.abc import Callable
from pathlib import Path

from syrupy.assertion import SnapshotAssertion

from kvctl.server import Server
from tests.cli.conftest import Run
from tests.raw import RawClient


def test_a_plan_says_what_changes_and_changes_nothing(
    run: Run, raw: RawClient, server: Server, unique: Callable[..., str], tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    old, new, mirror = unique("OLD"), unique("NEW"), unique("MIRROR")
    raw.create_bucket(old, max_msgs_per_subject=5)
    raw.put(old, "k", b"v")
    file = tmp_path / "topology.yaml"
    text = (
        f"version: 1\nbuckets:\n  {old}: {{storage: memory, description: x}}\n  {new}: {{ttl: 90s}}\n"
        f"mirrors:\n  {mirror}: {{origin: {old}, cluster: nyc}}\n"
    )
    file.write_text(text)
    masks = {"OLD": old, "NEW": new, "MIRROR": mirror}
    plan = ("topology", "plan", "-f", str(file), "-s", server.url)
    assert run(*plan, tty=True).masked(**masks) == snapshot
    assert run(*plan, "--exit-code").masked(**masks) == snapshot
    assert run(*plan, "-o", "json").masked(**masks) == snapshot
    assert run(*plan, "-o", "name").out.split() == [old, new, mirror]
    file.write_text(text.replace(", cluster", ", history: 1, cluster"))
    out = tmp_path / "topology.plan"
    assert run(*plan, "--out", str(out)).masked(**masks) == snapshot
    assert not out.exists()
    forced = run(*plan, "--out", str(out), "--force", "shorter-history", "-o", "json")
    assert (forced.exit_code, json.loads(forced.out)["hazards"][0]["forced"], out.exists()) == (0, True, True)
    assert run(*plan, "--force", "shorter-histories").exit_code == 2
    file.write_text(f"version: 1\nbuckets: {{{old}: {{history: 5}}}}\n")
    nothing = run(*plan, "--exit-code")
    assert (nothing.exit_code, nothing.out, nothing.err) == (0, "", "Nothing to change\n")
