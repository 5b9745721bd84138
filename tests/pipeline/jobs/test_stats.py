"""Statistics of a bucket, computed by Spark, and their picture."""

import re
from xml.etree import ElementTree

import pytest

from kvctl.errors import BucketNotFound, UsageError
from kvctl.pipeline.jobs.stats import Group, Key, Stats, stats
from kvctl.pipeline.jobs.stats_picture import picture
from kvctl.pipeline.options import SourceOptions


def test_keys_are_counted_by_prefix(engine, fill, raw, server):
    bucket = fill({"eu.a.1": b"x" * 10, "eu.a.2": b"x" * 5, "us.b": b"", "lone": b"xy"}, max_msgs_per_subject=3)
    for size in range(1, 4):
        raw.put(bucket, "eu.a.1", b"y" * size)
    raw.put(bucket, "us.b", b"", {"KV-Operation": "DEL"})
    found = stats(engine, SourceOptions(bucket=bucket, url=server.url), limit=2)
    total = found.total
    assert (found.cut, found.history, found.full, found.more) == (8, 3, 1, 1)
    assert (total.keys, total.deleted, total.entries, total.bytes, total.held) == (3, 1, 7, 10, 13)
    assert total.changed_today == 4
    assert total.oldest is not None
    assert total.oldest <= total.median <= total.newest  # type: ignore[operator]
    assert [(group.prefix, group.keys, group.bytes, group.held) for group in found.prefixes] == [
        ("eu", 2, 8, 11),
        ("", 1, 2, 2),
    ]
    assert [(key.key, key.bytes, key.entries) for key in found.largest] == [("eu.a.2", 5, 1), ("eu.a.1", 3, 3)]
    assert {key.key: key.a_day for key in found.hottest} == {"eu.a.1": None, "us.b": None}  # less than an hour
    deeper = stats(engine, SourceOptions(bucket=bucket, url=server.url, filter=("eu.>",)), tokens=2)
    assert [(group.prefix, group.keys) for group in deeper.prefixes] == [("eu.a", 2)]


def test_stats_of_an_empty_and_a_missing_bucket(engine, fill, server):
    found = stats(engine, SourceOptions(bucket=fill(), url=server.url))
    assert (found.total.keys, found.total.oldest, found.prefixes, found.largest) == (0, None, (), ())
    with pytest.raises(BucketNotFound):
        stats(engine, SourceOptions(bucket="NOWHERE", url=server.url))
    with pytest.raises(UsageError):
        stats(engine, SourceOptions(bucket="B", url=server.url), tokens=0)


def test_the_picture_is_svg_with_a_bar_for_each_prefix():
    def group(prefix: str, keys: int, size: int, changed: int) -> Group:
        return Group(prefix, keys, 0, keys, size, size, changed, 0, 0, 0)

    found = Stats(
        bucket="B", cut=9, history=1, full=0, total=group("", 4, 300, 2),
        prefixes=(group("a<b&\x01" + "x" * 40, 2, 200, 1), group("", 2, 100, 0)), more=0,
        largest=(Key("k", 1, 1, 1, None),), hottest=(), seconds=0.1,
    )  # fmt: skip
    drawn = picture(found)
    ElementTree.fromstring(drawn)
    widths = [float(width) for width in re.findall(r'class="bytes" x="190" y="\d+" width="([\d.]+)"', drawn)]
    assert widths[0] == 2 * widths[1]
    assert re.findall(r'class="changed" x="190" y="\d+" width="([\d.]+)"', drawn) == [f"{widths[0] / 2:.1f}"]
    assert "a&lt;b&amp;" in drawn
    assert "without a dot" in drawn
    ElementTree.fromstring(picture(Stats("B", 0, 1, 0, group("", 0, 0, 0), (), 0, (), (), 0.0)))
