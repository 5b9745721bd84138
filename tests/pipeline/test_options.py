"""Options of the data source: read, checked, named in errors, and never a secret among them."""

import pickle
from datetime import timedelta

import pytest

from kvctl.errors import UsageError
from kvctl.pipeline.options import OPTIONS, SourceOptions, given_as, option_list, parse


def test_option_names_ignore_case_and_have_defaults():
    options = parse({"BUCKET": "orders", "includedeleted": "TRUE", "timeout": "2s", "filter": "a.>, b.*"})
    assert options == SourceOptions("orders", include_deleted=True, timeout=timedelta(seconds=2), filter=("a.>", "b.*"))
    assert (options.mode, options.on_evicted, options.write_mode) == ("latest", "newer", "put")
    assert pickle.loads(pickle.dumps(options)) == options


def test_options_have_distinct_names():
    assert len({option.name.lower() for option in OPTIONS}) == len(OPTIONS)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "`bucket` is missing"),
        ({"bucket": ""}, "`bucket` is empty"),
        ({"bucket": "a b"}, "`bucket`: `a b` is not a bucket name"),
        ({"bucket": "B", "mode": "lastest"}, "`mode`: `lastest` is not one of `latest`, `history`, `changes`"),
        ({"bucket": "B", "partitions": "0"}, "`partitions`: `0` is not a positive number"),
        ({"bucket": "B", "partitions": "²"}, "`partitions`: `²` is not a positive number"),
        ({"bucket": "B", "filter": "a..b"}, "`filter`: `a..b` is not a filter"),
        ({"bucket": "B", "timeout": "0s"}, "`timeout`: It must be greater than 0"),
        ({"bucket": "B", "tlsFirst": "yes"}, "`tlsFirst`: `yes` is neither true nor false"),
        ({"bucket": "B", "url": "x://y"}, "`url`: `x://y` is not the URL of a server"),
        ({"bucket": "B", "fromRevision": "3"}, "`fromRevision` requires mode changes"),
        ({"bucket": "B", "mode": "changes", "fromRevision": "3", "toRevision": "2"}, "3 is greater than `to"),
        ({"bucket": "B", "domain": "hub", "apiPrefix": "$JS.hub.API"}, "cannot be combined"),
        ({"bucket": "B", "startingRevision": "last"}, "`startingRevision`: `last` is not earliest, latest or a"),
        ({"bucket": "B", "startingRevision": "5", "startingTime": "-1h"}, "cannot be combined"),
        ({"bucket": "B", "buckets": "C"}, "Only one of the options"),
        ({"buckets": "B,C", "asOf": "5"}, "`asOf` is a revision of one bucket"),
        ({"buckets": "B,C", "startingRevision": "5"}, "`startingRevision` is a revision of one bucket"),
        ({"bucketPattern": "a("}, "is not a regular expression"),
        ({"bucket": "B", "mode": "changes", "toRevision": "1", "endingTime": "-1h"}, "cannot be combined"),
        ({"bucket": "B", "minPartitions": "3", "partitions": "2"}, "3 is greater than `partitions`, 2"),
        ({"bucket": "B", "minRevisionsPerTrigger": "3", "maxRevisionsPerTrigger": "2"}, "3 is greater than"),
    ],
)
def test_invalid_value_names_the_option(given, said):
    with pytest.raises(UsageError) as refused:
        parse(given)
    assert said in refused.value.message


@pytest.mark.parametrize(
    ("name", "near"), [("buckt", "bucket"), ("colums", "columns"), ("frmRevision", "fromRevision"), ("Urll", "url")]
)
def test_unknown_option_suggests_the_nearest(name, near):
    with pytest.raises(UsageError) as refused:
        parse({"bucket": "B", name: "x"})
    assert f"`{name}` is not an option" in refused.value.message
    assert f"Did you mean `{near}`?" in (refused.value.hint or "")


@pytest.mark.parametrize("name", ["password", "Token", "seed"])
def test_secret_is_refused_with_an_alternative(name):
    with pytest.raises(UsageError) as refused:
        parse({"bucket": "B", name: "hunter2"})
    assert "context" in (refused.value.hint or "")
    assert "hunter2" not in f"{refused.value.message} {refused.value.hint}"


def test_a_secret_in_a_url_is_refused_and_not_shown():
    with pytest.raises(UsageError) as refused:
        parse({"bucket": "B", "url": "nats://me:hunter2@127.0.0.1"})
    assert "hunter2" not in f"{refused.value.message} {refused.value.hint}"


def test_options_are_written_as_they_were_given():
    given = {
        "bucket": "orders",
        "url": "nats://h:4222",
        "mode": "changes",
        "fromRevision": "7",
        "columns": "key,value",
        "includeDeleted": "true",
        "timeout": "1m30s",
        "failOnDataLoss": "false",
    }
    assert given_as(parse(given)) == given


def test_options_of_spark_are_ignored():
    assert parse({"bucket": "B", "path": "file:/x", "checkpointlocation": "/y"}) == SourceOptions("B")


def test_every_option_is_listed_with_its_default():
    listed = option_list()
    assert [line.split("`")[1] for line in listed.splitlines() if line.startswith("- ")] == [
        option.name for option in OPTIONS
    ]
    assert "default latest" in listed
