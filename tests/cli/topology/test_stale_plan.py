"""Saved plans after the servers changed: new hazards are refused, new readers confirmed, stale plans rejected."""

from collections.abc import Callable

import pytest

from tests.cli.dialogue import Dialogue

pytestmark = pytest.mark.guarantee("topology-6")

HAZARD, USAGE, STALE = 1, 2, 4


@pytest.fixture
def saved(run, raw, server, unique, tmp_path):
    """Save the plan between two files, `NAME` for the bucket; return its name and the command that applies it."""
    bucket, title = unique(), unique("t")
    file, plan = tmp_path / "topology.yaml", tmp_path / "topology.plan"

    def save(before: str, after: str) -> tuple[str, tuple[str, ...]]:
        for text, command in ((before, ["apply", "--yes"]), (after, ["plan", "--prune", "--out", str(plan)])):
            file.write_text(f"version: 1\nname: {title}\n{text.replace('NAME', bucket)}")
            result = run("topology", *command, "-f", str(file), "-s", server.url)
            assert result.exit_code == 0, result.transcript()
        return bucket, ("topology", "apply", str(plan), "-s", server.url)

    return save


Saved = Callable[[str, str], tuple[str, tuple[str, ...]]]
RECREATED = ("buckets: {NAME: {}}", "buckets: {NAME: {storage: memory}}")


def test_mirror_created_since_the_plan_is_reported_as_a_hazard(run, raw, server, unique, saved):
    bucket, apply = saved(*RECREATED)
    raw.put(bucket, "k", b"v")
    assert run("mirror", "create", unique("LATE"), "--origin", bucket, "-s", server.url).exit_code == 0
    result = run(*apply, "--yes", "--confirm", bucket)
    assert result.exit_code == HAZARD
    assert "recreated-origin" in result.err
    info = raw.api(f"STREAM.INFO.KV_{bucket}")
    assert (info["config"]["storage"], info["state"]["messages"]) == ("file", 1)


def test_prompt_counts_the_entries_that_the_bucket_holds_now(run, raw, server, saved):
    bucket, apply = saved(*RECREATED)
    for number in range(50):
        raw.put(bucket, f"k{number}", b"v")
    result = run(*apply, "--yes")
    assert result.exit_code == USAGE
    assert "drops 50 entries" in result.err
    assert "is empty" not in result.err


def test_bucket_filled_during_the_prompt_makes_the_plan_stale(raw, server, saved):
    bucket, apply = saved(*RECREATED)
    with Dialogue(*apply) as dialogue:
        dialogue.hear("[y/N]")
        raw.put(bucket, "k", b"v")
        dialogue.say("y")
        dialogue.hear("will be recreated")
        dialogue.hear(bucket)
        dialogue.say(bucket)
        text = dialogue.hear()
        assert dialogue.end() == STALE, text
    assert "now holds 1 entry" in text
    assert raw.api(f"STREAM.INFO.KV_{bucket}")["state"]["messages"] == 1
