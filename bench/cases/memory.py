"""Memory of commands on versions: it grows with the keys that change, not with their values."""

from __future__ import annotations

from bench.case import BEFORE, STEADY, Prepared, Table, case, grown
from bench.harness import Bench, Tree
from bench.measure import run
from kvctl.server import run_server

COUNTS = (50, 200)
MEGABYTE = 1_000_000


@case("versions-memory", "peak memory of versions, values of 1 MB", seconds=50)
def versions_memory(bench: Bench, _: int) -> Prepared:
    """Recording, status, diff and merge.

    Complete commands, each once. All values are recorded from a bucket, then loaded anew on a branch, committed there,
    and merged into `main`, which has changed in another key. `diff` prints each key with both values.
    """
    size = bench.sized(MEGABYTE)
    few, many = (_peaks(bench, bench.ours, count, size) for count in COUNTS)
    before = [_peaks(bench, bench.before, COUNTS[-1], size)] if bench.before else []
    names = [f"{count} values" for count in COUNTS]
    head = ("", *names, *(f"{BEFORE}, {names[-1]}" for _ in before))
    rows = [(f"`{name}`", *(f"{found[name]:.0f} MiB" for found in (few, many, *before))) for name in many]
    verdicts = [
        grown(f"`{name}`, peak memory, values of 1 MB", "MiB", (names[0], few[name]), (names[1], many[name]), STEADY)
        for name in many
    ]
    return Table(head, rows, verdicts)


def _peaks(bench: Bench, tree: Tree, count: int, size: int) -> dict[str, float]:
    """Return the peak memory of each command in MiB."""
    found: dict[str, float] = {}
    with run_server(name="memory") as server:
        env = {**bench.env, "NATS_URL": server.url}

        def kvctl(*words: str, name: str = "") -> None:
            done = run((tree.kvctl, *words), env=env)
            if name:
                found[f"kvctl {name}"] = done.peak / 2**20

        folder = bench.folder()
        for letter in "ab":
            with (folder / f"{letter}.ndjson").open("w") as file:
                file.writelines(f'{{"key": "k.{n}", "value": "{letter * size}"}}\n' for n in range(count))
        kvctl("bucket", "add", "B")
        kvctl("load", "B", str(folder / "a.ndjson"))
        kvctl("repo", "init", "R")
        kvctl("repo", "commit", "R@main", "-m", "a", "--from", "B", name="repo commit --from")
        kvctl("branch", "create", "R@b")
        kvctl("load", "R@b", str(folder / "b.ndjson"), name="load NAME@BRANCH")
        kvctl("repo", "status", "R@b", name="repo status")
        kvctl("repo", "diff", "R@b", "-o", "ndjson", name="repo diff, staged")
        kvctl("repo", "commit", "R@b", "-m", "b", name="repo commit")
        kvctl("repo", "diff", "R@main", "b", "-o", "ndjson", name="repo diff")
        kvctl("put", "R@main", "other", "1")
        kvctl("repo", "commit", "R@main", "-m", "other")
        kvctl("repo", "merge", "R", "b", "main", name="repo merge")
    return found
