"""Jobs on a cluster whose workers run as another user, each in file systems of its own."""

import json

import pytest

from tests.cli.conftest import run_process
from tests.pipeline.cluster import READY
from tests.pipeline.jobs_on_spark import writable

pytestmark = pytest.mark.slow

ENTRIES = {f"key.{number}": b"\xff\0%d" % number for number in range(50)}


@pytest.fixture(autouse=True)
def needs_machines(machines):
    if not machines.separate:
        pytest.skip("needs root and namespaces")


def test_check_describes_both_workers_and_their_files(machines):
    code, out, errors = machines.session.run("check", "--to", str(machines.folder("check") / "lake"), "-o", "json")
    assert (code, errors) == (0, "")
    assert [worker["host"] for worker in json.loads(out)["workers"]] == ["first", "second"]
    assert list((machines.shared / "check" / "lake").iterdir()) == []


@pytest.mark.parametrize(("folder", "hosts"), [("partly", "`second`"), ("apart", "`first`, `second`")])
def test_check_names_the_workers_that_have_another_file_system(machines, folder, hosts):
    to = getattr(machines, folder) / "lake"
    code, _, errors = machines.session.run("check", "--to", str(to))
    assert f"Files that the workers on {hosts} wrote to `{to}` are not there for this machine" in errors
    assert "hint: All machines have to share the folder" in errors
    assert code == 1
    assert not to.exists() or list(to.iterdir()) == []


def test_check_names_a_folder_that_the_workers_may_not_write(machines):
    code, _, errors = machines.session.run("check", "--to", str(machines.closed / "lake"))
    assert f"Could not write `{machines.closed}/lake" in errors
    assert "The user that runs Spark's executors needs to write it, too" in errors
    assert code == 1


@pytest.mark.guarantee("pipeline-22", "pipeline-29")
@pytest.mark.parametrize("folder", ["partly", "apart"])
@pytest.mark.parametrize("job", ["export", "capture"])
def test_no_row_is_reported_that_this_machine_does_not_see(machines, server, fill, job, folder):
    bucket = fill({f"{number % 4}.{number}": b"x" for number in range(400)})
    to = getattr(machines, folder) / f"{bucket}-{job}"
    options = ["--once"] if job == "capture" else ["--filter", "0.>", "--filter", "1.>", "--filter", "2.>"]
    line = [job, bucket, "--to", str(to), *options, "-s", server.url, "-o", "json"]
    code, out, errors = machines.session.run(*line)
    if folder == "partly" and code == 0:  # the first worker ran all tasks
        assert run_process("pipeline", "verify", str(to)).exit_code == 0
        return
    assert (code, out) == (1, ""), errors
    assert "rows were written, but" in errors
    if job == "capture":  # the offset stayed
        again = run_process("pipeline", *line, "--master", "local[1]", timeout=READY)
        assert json.loads(again.out)["captured"] == 400


def test_a_shared_folder_is_enough_for_every_job(machines, server, fill):
    bucket, lake = fill(ENTRIES), machines.folder("jobs")
    writable(lake / "capture")
    assert run_process("repo", "init", f"{bucket}R", "-s", server.url).exit_code == 0
    for line in (
        f"export {bucket} --to {lake}/export",
        f"capture {bucket} --to {lake}/capture --once",
        f"verify {lake}/export",
        f"compact {lake}/capture",
        f"load {lake}/export --into {bucket}B --create",
        f"audit {lake}/export {bucket}B",
        f"commit {bucket}R@main --from {lake}/export -m x",
    ):
        code, _, errors = machines.session.run(*line.split(), "-s", server.url)
        assert code == 0, (line, errors)
    listed = run_process("keys", f"{bucket}R@main", "--count", "-s", server.url)
    assert listed.out.strip() == "50"


def test_a_table_that_the_workers_do_not_see_is_named(machines, server, fill):
    """The file of rows to load is made here, and no worker has it."""
    target, table = fill(), machines.apart / "t.csv"
    table.write_text("key,value\na,1\n")
    code, _, errors = machines.session.run("load", str(table), "--into", target, "--key", "key", "-s", server.url)
    assert (code, "t.csv" in errors) == (1, True), errors


def test_rejected_rows_on_another_file_system_are_not_taken_for_stored(machines, server, fill):
    bucket, table = fill(), machines.folder("rejected") / "t.csv"
    table.write_text("key,value\na,1\nb c,2\n")
    line = ["load", str(table), "--into", bucket, "--key", "key", "--dead-letter", str(machines.apart / "dead")]
    code, _, errors = machines.session.run(*line, "-s", server.url)
    assert code == 7
    assert f"`{machines.apart}/dead` does not have all of them" in errors
