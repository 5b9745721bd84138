"""`kvctl bucket alternates` as a process: who can answer reads, and who does."""

import json
import re

from tests.support.waiting import until
from tests.topology.conftest import Replicas

FIELDS = "order served_by role cluster domain leader state entries_behind last_seen round_trip here name".split()


def test_alternates_of_a_cluster_are_those_that_its_servers_report(supercluster, run, unique):
    bucket, mirror = unique("O"), unique("M")
    lon, nyc = (supercluster.contexts[name].url for name in ("lon", "nyc"))
    assert run("bucket", "add", bucket, "--cluster", "lon", "-s", lon).exit_code == 0
    assert run("put", bucket, "k", "v", "-s", lon).exit_code == 0
    assert run("mirror", "create", mirror, "--origin", bucket, "--cluster", "nyc", "-s", lon).exit_code == 0
    for url, order in ((lon, [bucket, mirror]), (nyc, [mirror, bucket])):
        for name in (bucket, mirror):
            rows = json.loads(run("bucket", "alternates", name, "-o", "json", "-s", url).out)
            assert [list(row) for row in rows] == [FIELDS] * 2
            assert [(row["order"], row["served_by"], row["here"]) for row in rows] == [
                (1, order[0], True),
                (2, order[1], False),
            ]
            assert rows[0]["round_trip"] > 0
            assert rows[1]["round_trip"] is None
    shown = run("bucket", "alternates", bucket, "-s", nyc, tty=True)
    title, heading, _, near, far, _, answer = shown.out.splitlines()
    assert title == f"Reads of {bucket} are answered, nearest first, by"
    assert " ".join(heading.split()) == "# served by role cluster leader state behind round trip here"
    assert re.fullmatch(rf"  1  {mirror} +mirror +nyc +nyc +✓ ok +0 +\S.*\d ms  ━━━━━━━━━━  here", near)
    assert re.fullmatch(rf"  2  {bucket} +origin +lon +lon +✓ ok +0", far)
    assert answer == f"{mirror} answers here. `kvctl get --leader` asks the origin."
    assert shown.err == ""
    for what in ("bucket", "mirror"):
        details = run(what, "show", mirror, "-s", nyc, tty=True).out
        assert "  Reads answered by, nearest first\n  #  served by" in details


def test_a_bucket_without_mirrors_in_a_cluster_has_no_other_alternates(run, cluster, unique):
    name, at = unique("O"), ("-s", cluster.contexts["cluster"].url)
    assert run("bucket", "add", name, "--replicas", "3", *at).exit_code == 0
    listed = run("bucket", "alternates", name, *at)
    assert (listed.exit_code, listed.err) == (0, "The cluster reports no mirror of the bucket\n")


def test_alternates_outside_of_clusters_are_the_origin_and_its_mirrors(run, server, raw, unique):
    bucket, mirror, other, replicas, at = unique("O"), unique("M"), unique("N"), Replicas(raw), ("-s", server.url)
    raw.create_bucket(bucket)
    empty = json.loads(run("bucket", "alternates", bucket, "-o", "json", *at).out)
    assert [(row["served_by"], row["here"]) for row in empty] == [(bucket, None)]
    raw.put(bucket, "k", b"v")
    replicas.mirror(mirror, bucket)
    replicas.mirror(other, mirror, mirror={"name": mirror})  # answers reads of the mirror's name alone
    until(lambda: replicas.info(other)["state"]["messages"])
    listed = run("bucket", "alternates", bucket, *at)
    assert "This server reports no alternates (only clusters do)" in listed.err
    assert {tuple(line.split("\t")[1:3]) for line in listed.out.splitlines()} == {
        (bucket, "origin"),
        (mirror, "mirror"),
    }
    assert set(run("bucket", "alternates", mirror, "-o", "name", *at).out.split()) == {bucket, mirror}
    assert run("bucket", "alternates", unique("NONE"), *at).exit_code == 3
    assert run("bucket", "alternates", "a.b", *at).exit_code == 2
