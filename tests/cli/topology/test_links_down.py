"""Replicas on a leaf node of buckets of its hub, whose link is down in the second half.

Tests before the fixture `cut` need the link, those after it run on a leaf that started without it.
"""

import json

import pytest

from kvctl.labs import run_lab
from tests.cli.conftest import run_process


@pytest.fixture(scope="module")
def lab():
    with run_lab("leaf") as running:
        made = {
            "hub": [("bucket", "add", "ORD"), ("put", "ORD", "k", "v"), ("bucket", "add", "SUM")],
            "leaf": [
                ("mirror", "create", "ORD_L", "--origin", "ORD", "--origin-domain", "hub"),
                ("aggregate", "create", "AGG_L", "--origin", "bucket=SUM,domain=hub"),
                ("aggregate", "create", "AGG_M", "--origin", "stream=ORD_L,bucket=ORD"),
            ],
        }
        for context, commands in made.items():
            for command in commands:
                done = run_process(*command, env={"NATS_URL": running.contexts[context].url})
                assert done.exit_code == 0, done.err
        yield running


@pytest.fixture
def leaf(lab):
    """Runs kvctl on the leaf."""
    return lambda *args: run_process(*args, env={"NATS_URL": lab.contexts["leaf"].url})


@pytest.fixture(scope="module")
def cut(lab):
    """Restarts the leaf without the hub: its replicas have not heard of their origins since."""
    lab.stop("hub")
    lab.stop("leaf")
    lab.start("leaf")


def test_bucket_of_another_domain_is_named_as_the_origin_of_its_mirror(leaf):
    assert leaf("get", "ORD", "k").out == "v"
    missed = leaf("keys", "ORD", "-o", "json")
    error = json.loads(missed.err)["error"]
    assert (missed.exit_code, error["kind"], error["confirmed"]) == (3, "bucket-not-found", False)
    assert error["message"] == "Bucket `ORD` does not exist here; mirror `ORD_L` replicates the one in domain `hub`"
    assert error["hint"] == "Use `--domain hub`, or read mirror `ORD_L`, as in `kvctl keys ORD_L`"
    assert "aggregate `AGG_L` replicates the one in domain `hub`" in leaf("keys", "SUM").err


def test_bucket_that_is_deleted_in_its_domain_is_missing_as_any(lab, leaf):
    hub = {"NATS_URL": lab.contexts["hub"].url}
    run_process("bucket", "add", "LOST", env=hub)
    assert leaf("mirror", "create", "COPY", "--origin", "LOST", "--origin-domain", "hub").exit_code == 0
    run_process("bucket", "delete", "LOST", "--yes", env=hub)
    missed = leaf("keys", "LOST")
    assert (missed.exit_code, "`LOST` does not exist\n" in missed.err, "bucket add LOST" in missed.err) == (
        3,
        True,
        True,
    )
    assert leaf("mirror", "delete", "COPY", "--yes").exit_code == 0


def test_alternates_of_a_bucket_of_another_domain_are_those_of_its_mirror(leaf):
    rows = json.loads(leaf("bucket", "alternates", "ORD", "-o", "json").out)
    found = [(row["served_by"], row["role"], row["state"], row["here"]) for row in rows]
    assert found == [("ORD_L", "mirror", "ok", True), ("ORD", "origin", "ok", False)]
    assert leaf("bucket", "alternates", "SUM").exit_code == 3


def test_bucket_with_the_name_of_a_mirror_s_origin_elsewhere_is_a_hazard(leaf, tmp_path):
    evidence = "Mirror `ORD_L` of `ORD` in domain `hub` also answers reads of `ORD` here"
    refused = leaf("bucket", "add", "ORD")
    assert (refused.exit_code, evidence in refused.err, "--force shadowed-origin" in refused.err) == (1, True, True)
    assert evidence in leaf("bucket", "add", "ORD", "--dry-run").err
    assert evidence in leaf("bucket", "copy", "ORD_L", "ORD").err
    assert leaf("--domain", "hub", "bucket", "backup", "ORD", str(tmp_path / "backup")).exit_code == 0
    assert evidence in leaf("bucket", "restore", str(tmp_path / "backup")).err
    file = tmp_path / "topology.yaml"
    file.write_text("version: 1\nname: t\nbuckets: {ORD: {}}\n")
    planned = leaf("topology", "plan", "-f", str(file))
    assert (planned.exit_code, evidence in planned.out + planned.err) == (1, True)
    assert leaf("bucket", "add", "ORD", "--force", "shadowed-origin").exit_code == 0
    found = json.loads(leaf("doctor", "-o", "json").out)
    assert [(row["severity"], row["subject"]) for row in found if row["check"] == "shadowed-origin"] == [
        ("error", "ORD")
    ]
    second = ("mirror", "create", "ORD_2", "--origin", "ORD", "--origin-domain", "hub")
    assert "`ORD_2` of `ORD` in domain `hub` also answers" in leaf(*second).err
    file.write_text("version: 1\nname: t\nmirrors: {ORD_2: {origin: ORD, origin_domain: hub}}\n")
    planned = leaf("topology", "plan", "-f", str(file))
    assert (planned.exit_code, "`ORD_2` of `ORD` in domain `hub` also answers" in planned.out + planned.err) == (
        1,
        True,
    )
    assert leaf("bucket", "delete", "ORD", "--yes").exit_code == 0
    named = leaf("bucket", "add", "SUM")
    assert (named.exit_code, "`AGG_L` replicates `SUM` in domain `hub`, not this bucket" in named.err) == (0, True)
    assert leaf("bucket", "delete", "SUM", "--yes").exit_code == 0


def test_replica_of_a_mirror_is_consistent_while_the_mirror_is(leaf):
    audited = leaf("topology", "audit", "AGG_M")
    assert (audited.exit_code, "all consistent" in audited.out, audited.err) == (0, True, "")
    assert leaf("bucket", "diff", "AGG_M", "ORD_L").err == ""


@pytest.mark.usefixtures("cut")
def test_missing_bucket_of_a_domain_that_does_not_answer_is_not_confirmed(leaf):
    for command in (("get", "ORD", "k"), ("keys", "ORD"), ("put", "ORD", "k", "v")):
        missed = leaf(*command, "-o", "json")
        error = json.loads(missed.err)["error"]
        assert (missed.exit_code, error["confirmed"]) == (3, False)
        assert error["message"].endswith("mirror `ORD_L` replicates the one in domain `hub`, which does not answer")
        assert error["hint"] == "Read mirror `ORD_L` instead, as in `kvctl keys ORD_L`"


@pytest.mark.usefixtures("cut")
def test_mirror_of_another_domain_is_not_promoted_beside_itself_under_its_origin_s_name(leaf):
    promote = ("mirror", "promote", "ORD_L", "--as", "ORD")
    refused = leaf(*promote)
    assert (refused.exit_code, "Use `--delete-mirror`, or choose another name" in refused.err) == (1, True)
    assert "shadowed-origin" in leaf(*promote, "--dry-run").err
    assert "shadowed-origin" not in leaf(*promote, "--dry-run", "--delete-mirror").err


@pytest.mark.usefixtures("cut")
def test_replica_of_a_mirror_that_is_cut_off_is_not_confirmed(leaf):
    doubt = "`ORD_L` may lack entries of its origin `ORD`, which could not be read"
    audited = leaf("topology", "audit", "AGG_M", "-o", "json")
    (row,) = json.loads(audited.out)
    assert (audited.exit_code, row["consistent"], row["state"], row["keys"], row["error"]) == (
        5,
        None,
        "unconfirmed",
        1,
        doubt,
    )
    assert f"warning: {doubt}\n" in leaf("topology", "audit", "AGG_M").err
    assert "may lack entries of its origin" in leaf("topology", "audit", "AGG_M", "--format", "markdown").out
    compared = leaf("bucket", "diff", "AGG_M", "ORD_L")
    assert (compared.exit_code, compared.out, compared.err.count(doubt)) == (0, "", 1)
    (shown,) = json.loads(leaf("topology", "status", "AGG_M", "-o", "json").out)
    text = "its origin `ORD_L` has the state `silent`"
    assert (shown["state"], shown["lag"], shown["evidence"]) == ("unconfirmed", 0, text)
    assert f"? AGG_M (from ORD_L): {text}" in leaf("topology", "status").out
    assert text[1:] in leaf("doctor", "-o", "json").out
    served = json.loads(leaf("bucket", "alternates", "ORD_L", "-o", "json").out)
    assert "ok" not in {row["state"] for row in served if row["served_by"] == "ORD_L"}


@pytest.mark.usefixtures("cut")
def test_silent_replica_has_the_same_sign_everywhere(leaf):
    assert "✗ silent" in leaf("topology", "status").out
    assert "✗ ORD_L" in leaf("doctor").out
