"""Settings that other tools give to streams of buckets: each has a finding, and a remedy that ends it."""

import re
import shlex

import pytest

from kvctl.doctor.content import of_buckets
from kvctl.kv.oddity import ODDITIES, oddities
from tests.cli.conftest import run_process

CASES = {
    "interest-retention": {"retention": "interest"},
    "workqueue-retention": {"retention": "workqueue"},
    "renamed-keys": {"subject_transform": {"src": ">", "dest": "x.>"}},
    "counters": {"allow_msg_counter": True, "discard": "old"},
    "no-ack": {"no_ack": True},
    "async-persist": {"persist_mode": "async"},
    "written-once": {"discard_new_per_subject": True},
    "discards-old": {"discard": "old", "max_bytes": 1000},
    "max-consumers": {"max_consumers": 2},
    "consumer-limits": {"consumer_limits": {"inactive_threshold": 10**9}},
    "small-values": {"max_msg_size": 20},
    "no-direct-get": {"allow_direct": False},
    "no-rollup": {"allow_rollup_hdrs": False},
    "deny-purge": {"allow_rollup_hdrs": False, "deny_purge": True},
    "other-subjects": {"subjects": ["$KV.{}.>", "orders.{}.>"]},
    "message-deletes": {"deny_delete": False},
    "max-entries": {"max_msgs": 10},
    "long-history": {"max_msgs_per_subject": 65},
    "subjects": {"subjects": ["$KV.{}.a.>", "$KV.{}.b"]},
    "unlimited-history": {"max_msgs_per_subject": -1},
}
"""Finding -> the setting that has it, and nothing else."""
ELSEWHERE = {"sealed", "mirror-name"}
"""Findings that other tests show."""


def create(raw, name, settings):
    """Create a stream for a bucket with these settings."""
    subjects = [subject.format(name) for subject in settings.get("subjects", ["$KV.{}.>"])]
    return raw.create_bucket(name, **{**settings, "subjects": subjects})


def _found(raw, name):
    info = raw.api(f"STREAM.INFO.KV_{name}")
    return list(of_buckets({f"KV_{name}": info}, 1))


def test_every_oddity_has_a_case():
    assert {row.name for row in ODDITIES} - ELSEWHERE == set(CASES)


def test_ordinary_bucket_has_no_oddity(raw, unique):
    name = unique()
    raw.create_bucket(name)
    assert _found(raw, name) == []


@pytest.mark.parametrize("check", CASES)
def test_oddity_is_found_and_its_remedy_ends_it(raw, unique, server, check):
    name = unique()
    config = create(raw, name, CASES[check])["config"]
    (row,) = oddities(config)
    (finding,) = _found(raw, name)
    outside = check in ("subjects", "unlimited-history")
    assert finding.check == ("no-bucket" if outside else check)
    assert row.evidence(config) in finding.evidence
    assert "{" not in finding.evidence
    command = re.match(r"`kvctl (stream edit|bucket edit) (.*?)`", finding.remedy)
    if command is None:  # permanent: the server refuses every change
        assert check in ("workqueue-retention", "counters", "async-persist", "deny-purge")
        return
    edit = shlex.split(command[0].strip("`").removeprefix("kvctl "))
    done = run_process(*edit, "--server", server.url, *["--force", "lossy-edit"] * outside)
    assert done.exit_code == 0, done.transcript()
    assert _found(raw, name) == []
