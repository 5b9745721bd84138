"""`kvctl repo checkout`, and recording a live bucket in a repository."""

import json

import pytest

from tests.cli.conftest import Run


@pytest.fixture
def kv(run, server):
    """Run kvctl on the shared server."""
    return lambda *words, **settings: run(*words, "-s", server.url, **settings)


@pytest.fixture
def repo(kv, unique):
    """Create a repository with two commits: `a` and `b`, then `a` changed, `b` removed, `c` added."""
    name = unique("CONF")
    assert kv("repo", "init", name).exit_code == 0
    for changes, message in (({"a": "1", "b": "2"}, "first"), ({"a": "3", "b": None, "c": "4"}, "second")):
        for key, value in changes.items():
            words = ("delete", f"{name}@main", key) if value is None else ("put", f"{name}@main", key, value)
            assert kv(*words).exit_code == 0
        assert kv("repo", "commit", f"{name}@main", "-m", message).exit_code == 0
    return name


@pytest.fixture
def bucket(kv, bucket_name):
    assert kv("bucket", "add", bucket_name).exit_code == 0
    return bucket_name


def values(kv: Run, bucket: str) -> dict[str, str]:
    return {row["key"]: row["value"] for row in json.loads(kv("get", bucket, ">", "-o", "json").stdout)}


def test_checkout_writes_a_commit_and_an_earlier_one(kv, repo, bucket):
    result = kv("repo", "checkout", f"{repo}@main", "--to", bucket, "--yes", "-o", "json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert (found["written"], found["removed"], found["unchanged"], found["conflicts"]) == (2, 0, 0, [])
    assert values(kv, bucket) == {"a": "3", "c": "4"}
    assert kv("repo", "checkout", f"{repo}@main~1", "--to", bucket, "--yes").exit_code == 0
    assert values(kv, bucket) == {"a": "1", "b": "2"}


def test_checkout_dry_run_lists_changes_and_makes_none(kv, repo, bucket):
    revision = int(kv("put", bucket, "a", "0").stdout)
    kv("put", bucket, "stray", "0")
    line = ("repo", "checkout", f"{repo}@main", "--to", bucket, "--dry-run", "--read-only", "-o", "json")
    found = json.loads(kv(*line).stdout)
    assert found == [
        {"change": "changed", "key": "a", "revision": revision},
        {"change": "added", "key": "c", "revision": 0},
        {"change": "removed", "key": "stray", "revision": revision + 1},
    ]
    assert values(kv, bucket) == {"a": "0", "stray": "0"}


def test_checkout_asks_on_a_terminal(kv, repo, bucket, snapshot):
    kv("put", bucket, "stray", "0")
    for answer in (b"n\n", b"y\n"):
        result = kv("repo", "checkout", f"{repo}@main", "--to", bucket, tty=True, stdin=answer)
        assert result.masked({r"\([0-9a-f]{12}\)": "(COMMIT)"}, REPO=repo, BUCKET=bucket) == snapshot
    assert values(kv, bucket) == {"a": "3", "c": "4"}


def test_checkout_in_a_pipe_needs_yes_unless_nothing_differs(kv, repo, bucket):
    assert kv("repo", "checkout", f"{repo}@main", "--to", bucket).exit_code == 2
    assert values(kv, bucket) == {}
    assert kv("repo", "checkout", f"{repo}@main", "--to", bucket, "--yes").exit_code == 0
    assert kv("repo", "checkout", f"{repo}@main", "--to", bucket).exit_code == 0


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("{repo}@nosuch", "--to", "{bucket}"), 3),
        (("{repo}@main", "--to", "nosuch"), 3),
        (("nosuch@main", "--to", "{bucket}"), 3),
        (("{repo}@main", "--to", "{bucket}", "--read-only"), 1),
    ],
)
def test_checkout_with_invalid_arguments_changes_nothing(kv, repo, bucket, words, code):
    named = [word.format(repo=repo, bucket=bucket) for word in words]
    assert kv("repo", "checkout", *named, "--yes").exit_code == code
    assert values(kv, bucket) == {}


def test_checkout_ignores_staged_changes(kv, repo, bucket):
    kv("put", f"{repo}@main", "d", "staged")
    assert kv("repo", "checkout", f"{repo}@main", "--to", bucket, "--yes").exit_code == 0
    assert values(kv, bucket) == {"a": "3", "c": "4"}


def test_init_and_commit_record_a_live_bucket(kv, bucket, unique):
    name = unique("CONF")
    kv("put", bucket, "a", "1")
    assert kv("repo", "init", name, "--from", "nosuch", "--dry-run").exit_code == 3
    assert kv("repo", "init", name, "--from", bucket).exit_code == 0
    assert kv("repo", "init", name, "--from", bucket).out.endswith(f"; did not record bucket `{bucket}`\n")
    assert values(kv, f"{name}@main") == {"a": "1"}
    kv("put", bucket, "b", "2")
    result = kv("repo", "commit", f"{name}@main", "--from", bucket, "-m", "nightly", "-o", "json")
    commit = json.loads(result.stdout)
    assert (commit["message"], commit["meta"]["bucket"]) == ("nightly", bucket)
    assert values(kv, f"{name}@main") == {"a": "1", "b": "2"}
    assert kv("repo", "commit", f"{name}@main", "--from", bucket, "-m", "nightly").exit_code == 1
    kv("put", f"{name}@main", "c", "staged")
    assert kv("repo", "commit", f"{name}@main", "--from", bucket, "-m", "nightly").exit_code == 4


def test_init_names_settings_that_a_commit_cannot_hold(kv, raw, unique):
    bucket, name = unique(), unique("CONF")
    kv("bucket", "add", bucket, "--marker-ttl", "1m")
    kv("create", bucket, "short.lived", "1", "--ttl", "1h")
    raw.publish(f"$KV.{bucket}.n\N{LATIN SMALL LETTER E WITH ACUTE}", b"x")
    result = kv("repo", "init", name, "--from", bucket)
    assert result.exit_code == 0
    assert "short.lived" in result.err
    assert values(kv, f"{name}@main") == {"short.lived": "1"}
