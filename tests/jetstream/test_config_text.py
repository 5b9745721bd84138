"""Configurations as people write them: paths, kinds of values, files."""

from typing import Any

import pytest

from kvctl.documents.parser import parse
from kvctl.errors import UsageError
from kvctl.jetstream.config_text import CONSUMER, STREAM, assign, copied, read


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["max_age=1h30m"], {"max_age": 5400 * 10**9}),
        (["max_age=1000"], {"max_age": 1000}),
        (["max_bytes=10MB", "max_msgs=-1"], {"max_bytes": 10_000_000, "max_msgs": -1}),
        (["subjects=a.>,b"], {"subjects": ["a.>", "b"]}),
        (['subjects=["a,b"]'], {"subjects": ["a,b"]}),
        (["subjects.0=a", "subjects.1=b", "subjects.0=c"], {"subjects": ["c", "b"]}),
        (["allow_direct=yes", "sealed=false"], {"allow_direct": True, "sealed": False}),
        (["placement.cluster=lon", "placement.tags=a,b"], {"placement": {"cluster": "lon", "tags": ["a", "b"]}}),
        (["metadata.a.b=c=d"], {"metadata": {"a.b": "c=d"}}),
        (["sources.0.name=A", "sources.1.name=B"], {"sources": [{"name": "A"}, {"name": "B"}]}),
        (["sources.0.subject_transforms.0.src=a"], {"sources": [{"subject_transforms": [{"src": "a"}]}]}),
        (
            ['mirror={"name": "M"}', "mirror.external.api=$JS.hub.API"],
            {"mirror": {"name": "M", "external": {"api": "$JS.hub.API"}}},
        ),
        (["description=x", "description="], {}),
        (["max_age=1h", "max_age=null"], {}),
        (["subjects=a,b", "subjects.0=null"], {"subjects": ["b"]}),
    ],
)
def test_a_path_sets_a_value_of_its_kind(texts, expected):
    config: dict[str, Any] = {}
    for text in texts:
        assign(config, text, STREAM)
    assert config == expected


def test_consumers_have_their_own_fields():
    config: dict[str, Any] = {}
    for text in ("backoff=1s,5s", "opt_start_time=2026-01-31T12:00:00Z", "ack_wait=30s"):
        assign(config, text, CONSUMER)
    assert config == {
        "backoff": [10**9, 5 * 10**9],
        "opt_start_time": "2026-01-31T12:00:00.000000000Z",
        "ack_wait": 30 * 10**9,
    }


@pytest.mark.parametrize(
    ("text", "problem", "hint"),
    [
        ("max_age", "not PATH=VALUE", "--set max_age=1h"),
        ("max_agee=1h", "`max_agee` is not a field", "Did you mean `max_age`?"),
        ("placement.clustr=x", "`clustr` is not a field", "Did you mean `cluster`?"),
        ("max_age.x=1", "`max_age` is a duration", None),
        ("sources.x.name=A", "`x` is not a position", "start at 0"),
        ("sources.1.name=A", "the list has 0 items", "Use `0` to append one"),
        ("subjects.3=a", "the list has 0 items", "Use `0` to append one"),
        ("max_msgs=many", "whole number", None),
        ("retention=ever", "`retention` must be `limits`, `interest` or `workqueue`, not `ever`", None),
        ("storage.x=1", "`storage` is a word", None),
        ("allow_direct=maybe", "true or false", None),
        ("max_age=soon", "not a duration", None),
        ("placement=lon", "must be JSON", "placement.FIELD=VALUE"),
        ("sources=A", "list of objects", None),
        ("metadata._nats.level=9", "reserved for the server", None),
    ],
)
def test_invalid_assignment_is_refused_with_a_hint(text, problem, hint):
    with pytest.raises(UsageError, match=problem) as caught:
        assign({}, text, STREAM)
    assert hint is None or hint in (caught.value.hint or "")


def test_a_file_says_durations_in_words_or_nanoseconds():
    document = parse(b"max_age: 1h\nduplicate_window: 1000\nmax_bytes: 1KiB\nsubjects: [a.>]\n", "s.yaml")
    assert read(document.data, STREAM, document.where) == {
        "max_age": 3600 * 10**9,
        "duplicate_window": 1000,
        "max_bytes": 1024,
        "subjects": ["a.>"],
    }


def test_output_of_show_can_be_read_back():
    shown = {"name": "S", "state": {}, "config": {"name": "S", "metadata": {"_nats.level": "1", "mine": "x"}}}
    assert read(shown, STREAM, lambda *_: "f") == {"name": "S", "metadata": {"mine": "x"}}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"max_agee: 1h\n", r"s.yaml:1:\d+: `max_agee` is not a field"),
        (b"subjects: a\n", r"s.yaml:1:\d+: `subjects` must be a list"),
        (b"name: S\nplacement:\n  tags: [1]\n", r"s.yaml:3:\d+: `0` must be a text, not `1`"),
        (b"max_msgs: many\n", r"s.yaml:1:\d+: `max_msgs` must be a number"),
        (b"discard: all\n", r"s.yaml:1:\d+: `discard` must be `old` or `new`, not `all`"),
        (b"storage: 1\n", r"s.yaml:1:\d+: `storage` must be a word, not `1`"),
        (b"max_age: soon\n", r"s.yaml:1:\d+: `soon` is not a duration"),
        (b"- a\n", "not an object"),
    ],
)
def test_a_file_that_is_wrong_is_named_by_line(text, problem):
    document = parse(text, "s.yaml")
    with pytest.raises(UsageError, match=problem):
        read(document.data, STREAM, document.where)


def test_a_copy_leaves_the_servers_metadata():
    before = {"metadata": {"_nats.level": "1", "mine": "x"}, "subjects": ["a"]}
    copy = copied(before)
    copy["subjects"].append("b")
    assert copy["metadata"] == {"mine": "x"}
    assert before["subjects"] == ["a"]
