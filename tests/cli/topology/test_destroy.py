"""`kvctl topology destroy`: deletes what a file names, readers first, and nothing else."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Result, Run
from tests.support.raw import RawClient
from tests.support.waiting import until

Names = Callable[..., str]


class File:
    """A topology of a bucket, its mirror and an aggregate, applied to the server."""

    def __init__(self, run: Run, raw: RawClient, unique: Names, folder: Path) -> None:
        self._run, self._raw = run, raw
        self.bucket, self.mirror, self.aggregate = unique("B"), unique("M"), unique("A")
        self.streams = {f"KV_{self.bucket}", self.mirror, f"KV_{self.aggregate}"}
        self.path = folder / "topology.yaml"
        self.path.write_text(
            f"version: 1\nname: {unique('t')}\nbuckets: {{{self.bucket}: {{history: 5}}}}\n"
            f"mirrors: {{{self.mirror}: {{origin: {self.bucket}}}}}\n"
            f"aggregates: {{{self.aggregate}: {{origins: [{{bucket: {self.bucket}, prefix: x}}]}}}}\n"
        )
        assert self("apply", "--yes").exit_code == 0

    def __call__(self, command: str, *args: str, **settings: bool) -> Result:
        return self._run("topology", command, "-f", str(self.path), *args, **settings)

    @property
    def left(self) -> set[str]:
        """Streams of the file that exist."""
        return self.streams & {*self._raw.api("STREAM.NAMES")["streams"]}


@pytest.fixture
def file(run, raw, unique, tmp_path):
    return File(run, raw, unique, tmp_path)


def test_destroy_deletes_readers_before_their_origin_and_leaves_others(file, raw, unique):
    other = unique("OTHER")
    raw.create_bucket(other)
    raw.put(file.bucket, "k", b"v")
    result = file("destroy", "--yes", "-o", "json")
    changes = json.loads(result.out)["changes"]
    assert (result.exit_code, result.err) == (0, "")
    assert {change["action"] for change in changes} == {"delete"}
    assert {change["outcome"] for change in changes} == {"done"}
    assert changes[-1]["name"] == file.bucket
    assert file.left == set()
    assert f"KV_{other}" in raw.api("STREAM.NAMES")["streams"]
    again = file("destroy", "--yes")
    assert (again.exit_code, again.out) == (0, "Nothing to delete\n")


def test_destroy_asks_first_and_previews(file, raw):
    refused = file("destroy")
    assert (refused.exit_code, "--yes" in refused.err) == (2, True)
    assert "Delete 3 resources?" in refused.err
    raw.put(file.bucket, "k", b"v")
    assert "Delete 3 resources with 1 entry permanently?" in file("destroy").err  # that of the copies is not lost
    preview = file("destroy", "--dry-run")
    assert (preview.exit_code, sum(line.startswith("- ") for line in preview.out.splitlines())) == (0, 3)
    shown = file("destroy", "--dry-run", tty=True)
    assert f"- mirror `{file.mirror}`\n    deletes a copy of 1 entry (" in shown.out
    assert file.left == file.streams


def test_destroy_names_what_is_lost_with_a_copy_whose_origin_is_gone(file, raw):
    raw.put(file.bucket, "k", b"v")
    for stream in (file.mirror, f"KV_{file.aggregate}"):
        until(lambda stream=stream: raw.api(f"STREAM.INFO.{stream}")["state"]["messages"] == 1)
    raw.api(f"STREAM.DELETE.KV_{file.bucket}")
    shown = file("destroy", "--dry-run", tty=True)
    assert f"- mirror `{file.mirror}`\n    drops 1 entry (" in shown.out
    assert "with 2 entries permanently?" in file("destroy").err


def test_destroy_asks_for_the_name_of_a_bucket_with_a_reader_outside_the_file(file, run, unique, raw):
    reader = unique("READER")
    assert run("mirror", "create", reader, "--origin", file.bucket).exit_code == 0
    refused = file("destroy", "--yes")
    assert (refused.exit_code, reader in refused.err) == (1, True)
    forced = ("destroy", "--yes", "--force", "recreated-origin")
    unnamed = file(*forced)
    assert (unnamed.exit_code, f"--confirm {file.bucket}" in unnamed.err) == (2, True)
    assert file.left == file.streams
    assert file(*forced, "--confirm", file.bucket).exit_code == 0
    assert file.left == set()
    assert reader in raw.api("STREAM.NAMES")["streams"]


def test_destroy_and_apply_take_the_file_as_an_argument(file, run, raw):
    path = str(file.path)
    assert run("topology", "destroy", path, "--yes").exit_code == 0
    assert file.left == set()
    plan = f"{path}.plan"
    assert run("topology", "plan", path, "--out", plan).exit_code == 0
    preview = run("topology", "apply", path, "--dry-run")
    assert preview.out == run("topology", "apply", "-f", path, "--dry-run").out
    assert "3 to create" in preview.out
    assert run("topology", "apply", plan, "--yes").exit_code == 0  # by its content
    assert file.left == file.streams
    assert run("topology", "apply", path, "--yes").out == "Nothing to change\n"
    assert run("topology", "render", path).out == run("topology", "render", "-f", path).out


def test_destroy_refuses_a_name_with_another_meaning(file, raw):
    raw.api(f"STREAM.DELETE.{file.mirror}")
    raw.api(f"STREAM.CREATE.{file.mirror}", {"name": file.mirror, "subjects": [f"{file.mirror}.>"]})
    refused = file("destroy", "--yes")
    assert refused.exit_code == 4
    assert file.left == file.streams
