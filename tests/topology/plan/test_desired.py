"""Rendered configurations equal those that `apply` creates, also if inherited over several replicas."""

from typing import Any

from kvctl.documents import parser
from kvctl.topology.model.file import read_topology
from kvctl.topology.plan.desired import RenderedStreams, render

HOUR = 3600 * 10**9


def rendered(text: str) -> RenderedStreams:
    return render(read_topology(parser.parse(f"version: 1\n{text}".encode(), "t.yaml")))


def configs(text: str) -> dict[str, dict[str, Any]]:
    return {stream["name"]: stream for stream in rendered(text).streams}


def test_every_source_begins_with_the_first_entry():
    found = configs(
        "buckets: {B: {}, C: {}}\naggregates: {A: {origins: [{bucket: B, prefix: b}, {bucket: C, keys: c.>}]}}"
    )
    assert [source["opt_start_seq"] for source in found["KV_A"]["sources"]] == [1, 1]


def test_mirror_of_a_mirror_reads_the_mirror_s_stream():
    found = configs("buckets: {B: {ttl: 1h, history: 5}}\nmirrors: {M2: {origin: M1}, M1: {origin: B}}")
    assert (found["M2"]["mirror"]["name"], found["M1"]["mirror"]["name"]) == ("M1", "KV_B")
    assert {(stream["max_age"], stream["max_msgs_per_subject"]) for stream in found.values()} == {(HOUR, 5)}
    assert list(found) == ["KV_B", "M1", "M2"]


def test_aggregates_inherit_from_mirrors_and_from_aggregates_further_down():
    found = configs(
        "aggregates: {A2: {origins: [{bucket: A1, prefix: p}]}, A1: {origins: [{stream: M, prefix: q}]}}\n"
        "mirrors: {M: {origin: B}}\nbuckets: {B: {ttl: 1h, history: 5, marker_ttl: 5s}}"
    )
    assert list(found) == ["KV_B", "M", "KV_A1", "KV_A2"]
    assert {(stream["max_age"], stream["max_msgs_per_subject"]) for stream in found.values()} == {(HOUR, 5)}
    assert all(stream["allow_msg_ttl"] for stream in found.values())
    assert found["KV_A1"]["sources"][0]["subject_transforms"] == [{"src": "$KV.B.>", "dest": "$KV.A1.q.>"}]


def test_origin_outside_the_file_is_named_and_its_mirror_answers_reads():
    found = rendered("mirrors: {M: {origin: B}, N: {origin: B, history: 1, ttl: 1h}}")
    assert all(stream["mirror_direct"] for stream in found.streams)
    assert found.warnings == [
        "`B` is not in the file, so the history and ttl that `M` inherits from it is unknown here"
    ]


def test_origins_in_a_context_of_unknown_domain_are_found_by_name():
    found = configs(
        "contexts: {hub: {context: prod}, edge: {url: 'nats://h:4222', domain: leaf}}\n"
        "buckets: {B: {ttl: 1h, in: hub}}\naggregates: {A: {in: edge, origins: [{bucket: B, domain: hub}]}}"
    )
    assert found["KV_A"]["max_age"] == HOUR
    assert found["KV_A"]["sources"][0]["external"] == {"api": "$JS.hub.API"}
