"""`kvctl topology audit` as a process: output, exit codes, and repairs."""

import json

import pytest

WIDTHS = {r"(?<=\S) {2,}": "  ", r"(?m) +$": ""}
"""Names are of different lengths."""
FIELDS = (
    "origin replica kind origin_at context keys missing extra stale differing collisions local expiring consistent "
    "causes error samples state"
).split()


@pytest.fixture
def stale(run, raw, unique):
    """Recreate a bucket under its mirror."""
    bucket, mirror = unique("ORDERS"), unique("M")
    raw.create_bucket(bucket)
    for key in ("k.1", "k.2", "k.3"):
        raw.put(bucket, key, b"old")
    assert run("mirror", "create", mirror, "--origin", bucket).exit_code == 0
    raw.api(f"STREAM.DELETE.KV_{bucket}")
    raw.create_bucket(bucket)
    raw.put(bucket, "k.1", b"new")
    return bucket, mirror


@pytest.fixture
def consistent(run, raw, unique):
    """Create a bucket and a consistent mirror."""
    bucket, mirror = unique("ORDERS"), unique("M")
    raw.create_bucket(bucket)
    raw.put(bucket, "k.1", b"v")
    assert run("mirror", "create", mirror, "--origin", bucket).exit_code == 0
    return bucket, mirror


def test_audit_of_consistent_replicas_exits_0_with_a_row_for_each_pair(run, consistent):
    result = run("topology", "audit", consistent[0], "-o", "json")
    assert result.exit_code == 0
    (row,) = json.loads(result.out)
    assert list(row) == FIELDS
    assert (row["origin"], row["replica"], row["keys"], row["consistent"], row["samples"]) == (*consistent, 1, True, [])


def test_audit_with_drift_exits_4_with_samples_and_the_cause(run, stale, snapshot):
    bucket, mirror = stale
    report = run("topology", "audit", bucket, "--format", "markdown")
    assert (report.exit_code, report.out.splitlines()[0]) == (4, "### Audit: 1 of 1 differ")
    assert f"| {bucket} | {mirror} | k.2 | extra |" in report.out
    result = run("topology", "audit", bucket, "-o", "table")
    assert result.masked(WIDTHS, BUCKET=bucket, MIRROR=mirror) == snapshot
    (row,) = json.loads(run("topology", "audit", mirror, "-o", "json").out)
    assert (row["extra"], row["differing"], row["consistent"], row["causes"]) == (2, 1, False, ["recreated-origin"])
    sample = {"origin": bucket, "replica": mirror, "key": "k.1", "difference": "differing", "origin_key": "k.1"}
    assert row["samples"][-1] == {**sample, "origin_revision": 1, "revision": 1, "cause": "recreated-origin"}


def test_audit_all_lists_every_difference(run, stale):
    bucket, mirror = stale
    result = run("topology", "audit", mirror, "--all", "-o", "tsv")
    assert result.exit_code == 4
    rows = [line.split("\t") for line in result.out.splitlines()]
    assert sorted((row[1], row[2], row[3]) for row in rows) == [
        (mirror, "k.1", "differing"),
        (mirror, "k.2", "extra"),
        (mirror, "k.3", "extra"),
    ]
    assert f"`{mirror}` of `{bucket}`: 1 keys, " in result.err


def test_audit_of_an_unknown_name_exits_3_and_without_replicas_0(run, raw, unique):
    bucket = unique("LONELY")
    assert run("topology", "audit", bucket).exit_code == 3
    raw.create_bucket(bucket)
    result = run("topology", "audit", bucket)
    assert (result.exit_code, result.out, result.err) == (0, "", "Nothing to audit: no mirrors or aggregates\n")
    assert run("topology", "audit", bucket, "-o", "json").out == "[]\n"


def test_audit_of_an_unreadable_origin_exits_5_unless_another_replica_differs(run, raw, consistent, stale):
    bucket, mirror = consistent
    raw.api(f"STREAM.DELETE.KV_{bucket}")
    result = run("topology", "audit", bucket, "-o", "json")
    assert (result.exit_code, json.loads(result.out)[0]["consistent"]) == (5, None)
    assert f"`{mirror}` of `{bucket}` was not audited: Origin `{bucket}` does not exist" in result.err
    assert run("topology", "audit", bucket, stale[0]).exit_code == 4


def test_repair_asks_and_ends_with_a_clean_audit(run, raw, stale):
    bucket, mirror = stale
    audit = ("topology", "audit", bucket, "--repair")
    assert run(*audit).exit_code == 2  # no terminal to ask on
    assert run(*audit, stdin=b"n\n", tty=True).exit_code == 1
    planned = run(*audit, "--dry-run", "-o", "json")
    step = {"replica": mirror, "kind": "mirror", "action": "recreate", "refill": 0, "overwrite": 0, "purge": 0}
    assert (planned.exit_code, json.loads(planned.out)) == (0, [step])
    asked = f"$JS.API.DIRECT.GET.{mirror}.$KV.{bucket}.k.1"
    assert raw.request(asked).data == b"old"
    done = run(*audit, "--yes", "-o", "json")
    assert (done.exit_code, [row["consistent"] for row in json.loads(done.out)]) == (0, [True])
    assert raw.request(asked).data == b"new"
    assert run(*audit, "--yes").exit_code == 0


def test_repair_on_a_terminal_describes_its_steps(run, stale):
    bucket, mirror = stale
    result = run("topology", "audit", bucket, "--repair", stdin=b"y\n", tty=True)
    assert result.exit_code == 0
    assert "1 link: all drifted" in result.out
    assert result.out.endswith("1 link: all consistent\n")
    for text in (f"Mirror `{mirror}` will be recreated. A temporary", f"Repair `{mirror}`?", f"Repaired `{mirror}`"):
        assert text in result.err


def test_audit_reports_an_interrupted_mirror_repair_and_completes_it(run, raw, consistent):
    mirror = consistent[1]
    config = raw.api(f"STREAM.INFO.{mirror}")["config"]
    left = {**config, "name": f"kvctl-repair-{mirror}", "metadata": {"kvctl.repair": mirror}}
    assert "error" not in raw.api(f"STREAM.CREATE.kvctl-repair-{mirror}", left)
    raw.api(f"STREAM.DELETE.{mirror}")
    said = run("topology", "audit", mirror)
    assert (said.exit_code, f"A repair of mirror `{mirror}` was interrupted" in said.err) == (4, True)
    assert run("topology", "audit", mirror, "--repair", "--yes").exit_code == 0
    assert raw.api(f"STREAM.INFO.{mirror}")["config"] == config
    assert "error" in raw.api(f"STREAM.INFO.kvctl-repair-{mirror}")


def test_audit_of_a_file_checks_the_replicas_in_it(run, server, consistent, stale, tmp_path):
    bucket, mirror = consistent
    file = tmp_path / "topology.yaml"
    file.write_text(f"version: 1\nbuckets: {{{bucket}: {{}}}}\nmirrors: {{{mirror}: {{origin: {bucket}}}}}\n")
    result = run("topology", "audit", "-f", str(file), "-o", "name")
    assert (result.exit_code, result.out) == (0, f"{mirror}\n")
    there = f"contexts: {{here: {{url: '{server.url}'}}}}\nversion: 1\n"
    file.write_text(f"{there}mirrors: {{{stale[1]}: {{origin: {stale[0]}, in: here}}}}\n")
    result = run("topology", "audit", "-f", str(file), "-o", "json")
    assert (result.exit_code, json.loads(result.out)[0]["context"]) == (4, "here")
    file.write_text(f"version: 1\nmirrors: {{NONE: {{origin: {bucket}}}}}\n")
    assert run("topology", "audit", "-f", str(file)).exit_code == 3


def test_read_only_connection_audits_but_does_not_repair(run, stale):
    audit = ("topology", "audit", stale[0], "--read-only")
    assert run(*audit).exit_code == 4
    assert run(*audit, "--repair", "--yes").exit_code == 1
