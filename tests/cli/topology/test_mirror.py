"""`kvctl mirror` as a process."""

import json
import re

import pytest


@pytest.fixture
def bucket(raw, unique):
    """A bucket with three entries and history 5."""
    name = unique("ORDERS")
    raw.create_bucket(name, max_msgs_per_subject=5)
    for key in ("NEW.1", "NEW.2", "OLD.1"):
        raw.put(name, key, b"v")
    return name


def test_mirror_is_created_listed_shown_and_deleted(run, raw, bucket, unique):
    name = unique("M")
    made = run("mirror", "create", name, "--origin", bucket)
    assert (made.exit_code, made.out.startswith(f"Created mirror `{name}` of"), made.err) == (0, True, "")
    assert raw.api(f"STREAM.INFO.{name}")["state"]["messages"] == 3  # the command waited until it was filled
    again = run("mirror", "create", name, "--origin", bucket)
    assert (again.exit_code, again.out) == (0, f"Mirror `{name}` already exists with this configuration\n")
    other = run("mirror", "add", name, "--origin", bucket, "--history", "9")
    assert other.exit_code == 4
    assert "history: 5 -> 9" in other.err

    listed = json.loads(run("mirror", "ls", "-o", "json").out)
    (row,) = [row for row in listed if row["name"] == name]
    origins = [{"name": bucket, "stream": f"KV_{bucket}", "domain": None, "api": None}]
    assert (row["origins"], row["values"], row["history"], row["lag"], row["error"]) == (origins, 3, 5, 0, None)
    shown = json.loads(run("mirror", "show", name, "-o", "json").out)
    assert (shown["kind"], shown["origins"][0]["stream"]) == ("mirror", f"KV_{bucket}")
    deleted = run("mirror", "rm", name, "--yes")
    assert deleted.exit_code == 0
    assert run("mirror", "show", name).exit_code == 3


def test_mirror_create_reports_on_a_terminal_and_in_json(run, bucket, unique):
    one, other = unique("M"), unique("M")
    made = run("mirror", "create", one, "--origin", bucket, tty=True)
    built = rf"Created mirror `{one}` of `{bucket}`: 3 entries in \d+\.\d s\. It answers reads of `{bucket}`\. "
    watch = rf"Watch it with `kvctl topology status {one} --watch`\n"
    assert re.fullmatch(built + watch, made.out.replace("\n", " ").rstrip() + "\n")
    made = run("mirror", "create", other, "--origin", bucket, "-o", "json")
    origins = [{"name": bucket, "stream": f"KV_{bucket}", "domain": None, "api": None}]
    assert json.loads(made.out) == {"name": other, "stream": other, "origins": origins, "changed": True}


def test_mirror_and_aggregate_are_edited_by_their_own_commands(run, raw, bucket, unique):
    mirror, aggregate = unique("M"), unique("A")
    assert run("mirror", "create", mirror, "--origin", bucket).exit_code == 0
    assert run("aggregate", "create", aggregate, "--origin", bucket).exit_code == 0
    for kind, name, stream in (("mirror", mirror, mirror), ("aggregate", aggregate, f"KV_{aggregate}")):
        assert run(kind, "edit", name, "--description", "near", "--dry-run").exit_code == 0
        assert "description" not in raw.api(f"STREAM.INFO.{stream}")["config"]
        assert run(kind, "edit", name, "--description", "near").exit_code == 0
        assert raw.api(f"STREAM.INFO.{stream}")["config"]["description"] == "near"
        assert run(kind, "edit", name, "--clear", "description").exit_code == 0
        assert not raw.api(f"STREAM.INFO.{stream}")["config"].get("description")
        assert run(kind, "edit", unique("NONE"), "--description", "x").exit_code == 3
        other = run(kind, "edit", bucket, "--description", "x")
        assert (other.exit_code, f"`{bucket}` is a bucket, not" in other.err) == (1, True)


def test_write_through_the_name_of_a_mirror_names_its_origin(run, bucket, unique):
    name = unique("M")
    assert run("mirror", "create", name, "--origin", bucket).exit_code == 0
    note = f"note: `{name}` is a mirror; written to its origin `{bucket}`\n"
    assert run("put", name, "NEW.9", "v").err == note
    assert run("put", name, "NEW.9", "v", "-q").err == ""
    assert run("put", name, "NEW.9", "v", "--if-different").err == ""  # nothing was written
    assert run("load", name, "-", stdin=b'{"key":"a","value":"1"}\n{"key":"b","value":"2"}\n').err.endswith(note)
    assert run("delete", name, "a", "b", "NEW.9").err == note
    assert run("put", bucket, "NEW.9", "v").err == ""


def test_mirror_takes_compression_metadata_and_a_limit_of_values(run, raw, bucket, unique):
    name = unique("M")
    args = ("mirror", "create", name, "--origin", bucket, "--compress", "--metadata", "site=nyc")
    assert run(*args).exit_code == 0
    config = raw.api(f"STREAM.INFO.{name}")["config"]
    assert (config["compression"], config["metadata"]["site"], config["max_msg_size"]) == ("s2", "nyc", -1)
    limited = run("mirror", "create", unique("M"), "--origin", bucket, "--max-value-size", "1KiB")
    assert limited.exit_code == 1
    assert "max-value-size 1.0 KiB is below" in limited.err
    assert "smaller-limits" in limited.err


def test_mirror_create_dry_run_prints_the_stream_and_its_hazards(run, bucket, unique, snapshot):
    name = unique("M")
    result = run(*f"mirror create {name} --origin {bucket} --keys NEW.> --ttl 1h --deny-purge -n".split())
    assert result.masked(BUCKET=bucket, MIRROR=name) == snapshot
    assert run("mirror", "show", name).exit_code == 3


def test_mirror_create_takes_the_origin_as_an_argument(run, bucket, unique):
    name = unique("M")
    planned = run("mirror", "create", name, bucket, "--dry-run", "-o", "json")
    assert planned.out == run("mirror", "create", name, "--origin", bucket, "--dry-run", "-o", "json").out
    assert f'"KV_{bucket}"' in planned.out
    assert run("mirror", "create", name, bucket, "--dry-run", "-o", "name").out == f"{name}\n"


def test_mirror_create_reports_all_hazards_together(run, bucket, unique, snapshot):
    name = unique("M")
    args = ("mirror", "create", name, "--origin", bucket, "--keys", "NEW.>", "--ttl", "1h")
    assert run(*args).masked(BUCKET=bucket, MIRROR=name) == snapshot
    assert run(*args, "--force", "filtered-mirror").exit_code == 1
    assert run(*args, "--force", "filtered-mirror", "--force", "shorter-ttl").exit_code == 0


def test_mirror_create_with_a_missing_origin_is_not_found(run, unique):
    name, origin = unique("M"), unique("NONE")
    missing = run("mirror", "create", name, "--origin", origin)
    assert (missing.exit_code, missing.err.splitlines()[0]) == (3, f"error: Origin `{origin}` does not exist")
    args = ("mirror", "create", name, "--origin", origin, "--force", "missing-origin")
    assert run(*args, "--wait-for", "0").exit_code == 9
    waited = run(*args, "--wait-for", "300ms")
    assert waited.exit_code == 9
    assert "stream not found (10059)" in waited.err or "never connected" in waited.err
    assert run(*args, "--no-wait").exit_code == 0


def test_misspelt_origins_and_replicas_have_the_nearest_name_in_their_hint(run, bucket, unique):
    missing = run("mirror", "create", unique("M"), "--origin", bucket + "x")
    assert (missing.exit_code, f"Did you mean `{bucket}`?" in missing.err) == (3, True)
    name = unique("COPY")
    assert run("mirror", "create", name, "--origin", bucket).exit_code == 0
    for line in (("mirror", "show"), ("topology", "graph"), ("topology", "status")):
        missing = run(*line, name + "x")
        assert (missing.exit_code, f"Did you mean `{name}`?" in missing.err) == (3, True)
    assert "Did you mean" not in run("mirror", "show", bucket + "x").err


def test_mirror_commands_refuse_a_bucket(run, bucket):
    for verb in ("show", "delete"):
        refused = run("mirror", verb, bucket)
        assert (refused.exit_code, refused.err.splitlines()[0]) == (1, f"error: `{bucket}` is a bucket, not a mirror")
    assert run("mirror", "create", bucket, "--origin", bucket).exit_code == 4


def test_mirror_show_warns_of_configuration_problems(run, raw, bucket, unique):
    name = unique("M")
    raw.api(f"STREAM.CREATE.{name}", {"name": name, "mirror": {"name": f"KV_{bucket}"}, "max_msgs_per_subject": 1})
    assert "keeps 1 revision, fewer than" in run("mirror", "show", name).err


def test_mirror_is_promoted_after_its_origin_is_lost(run, raw, bucket, unique):
    name = unique("M")
    assert run("mirror", "create", name, "--origin", bucket).exit_code == 0
    raw.api(f"STREAM.DELETE.KV_{bucket}")
    rescued = unique("RESCUED")
    args = ("mirror", "promote", name, "--as", rescued)
    planned = json.loads(run(*args, "--dry-run", "-o", "json").out)
    assert (planned["name"], planned["max_msgs_per_subject"]) == (f"KV_{rescued}", 5)
    promoted = run(*args, "-o", "json")
    assert f"`{name}` may lack entries of its origin `{bucket}`, which could not be read" in promoted.err
    made = json.loads(promoted.out)
    assert (made["name"], made["entries"], made["mirror_deleted"]) == (rescued, 3, False)
    assert run("keys", rescued, "--sort").out.split() == ["NEW.1", "NEW.2", "OLD.1"]
    assert run(*args).exit_code == 4
    again = ("mirror", "promote", name, "--as", bucket)
    refused = run(*again)
    assert (refused.exit_code, "--force recreated-origin" in refused.err) == (1, True)
    unanswered = run(*again, "--delete-mirror")
    assert (unanswered.exit_code, "`--yes` is required" in unanswered.err) == (2, True)
    assert run("bucket", "show", bucket).exit_code == 3
    assert run(*again, "--delete-mirror", "--yes").exit_code == 0
    assert run("get", bucket, "NEW.1").stdout == b"v"
    assert run("mirror", "show", name).exit_code == 3


def test_promote_asks_before_deleting_a_mirror_with_readers(run, bucket, unique):
    name, reader, made = unique("M"), unique("M"), unique("B")
    assert run("mirror", "create", name, "--origin", bucket).exit_code == 0
    assert run("mirror", "create", reader, "--origin", name).exit_code == 0
    args = ("mirror", "promote", name, "--as", made, "--delete-mirror")
    refused = run(*args, "--yes")
    assert (refused.exit_code, f"`--confirm {name}` is required" in refused.err) == (2, True)
    assert f"Mirror `{reader}` replicates `{name}`" in refused.err
    assert run("bucket", "show", made).exit_code == 3
    assert run(*args, "--confirm", name).exit_code == 0
    assert run("mirror", "show", name).exit_code == 3


def test_stream_edit_of_an_origin_names_the_hazard_for_its_mirrors(run, bucket, unique):
    assert run("mirror", "create", unique("M"), "--origin", bucket).exit_code == 0
    edit = ("stream", "edit", f"KV_{bucket}", "--set", "allow_direct=false")
    refused = run(*edit)
    assert (refused.exit_code, "--force origin-not-direct" in refused.err) == (1, True)
    assert run(*edit, "--force", "origin-not-direct").exit_code == 0


def test_mirror_delete_keeps_a_bucket_of_the_same_name(run, raw, bucket, unique):
    name = unique("M")
    raw.api(f"STREAM.CREATE.{name}", {"name": name, "mirror": {"name": f"KV_{bucket}"}})
    raw.create_bucket(name)
    assert run("mirror", "delete", name, "--yes").exit_code == 1
    assert "error" not in raw.api(f"STREAM.INFO.KV_{name}")
