"""load and dump on the command line: streams, files, exit codes, what a kill leaves."""

import json
import os
import re
import signal
import time
from typing import Any

import pytest

from kvctl.cli.keys.transfer import _appearing as appearing
from tests.cli.conftest import run_process


def rows(*items: Any) -> bytes:
    return b"".join(json.dumps(item).encode() + b"\n" for item in items)


@pytest.fixture
def filled(keyed):
    """A bucket with a few keys."""
    for number in range(5):
        keyed.put(f"k.{number}", b"v%d" % number)
    keyed.put("k.1", b"again")
    keyed.delete("k.2")
    return keyed


def test_a_dump_goes_through_a_pipe_into_another_bucket(filled, unique):
    other = unique()
    filled.raw.create_bucket(other, max_msgs_per_subject=5)
    whole = filled("dump", "B", "--history")
    loaded = filled("load", other, "-", stdin=whole.stdout)
    assert (loaded.exit_code, loaded.out, loaded.err) == (0, "7\t0\t0\n", loaded.err)
    assert re.fullmatch(r"7 written, 0 unchanged, 0 rejected in \d+.\d s(?:, [\d,]+ rows/s)?\n", loaded.err)
    again = filled("dump", other, "--history")
    assert _contents(again.stdout) == _contents(whole.stdout)
    assert len(filled("dump", "B").out.splitlines()) == 6


def _contents(dump: bytes) -> list[tuple[str, str, str]]:
    lines = [json.loads(line) for line in dump.splitlines()[1:-1]]
    return [(row["key"], row["operation"], row["value"]) for row in lines]


def test_a_dump_of_the_past(filled):
    past = filled("dump", "B", "--as-of", "5")
    assert json.loads(past.out.splitlines()[0])["cut"] == 5
    assert [key for key, _, _ in _contents(past.stdout)] == [f"k.{number}" for number in range(5)]
    assert filled("dump", "B", "--as-of", "99").exit_code == 3


def test_what_writers_keep_from_the_cut_is_named(keyed, unique, tmp_path, start):
    """A few hundred keys are written again and again, faster than the other twenty thousand can be read."""
    name = unique()
    keyed.raw.create_bucket(name)
    hot = [f"hot.{number}" for number in range(300)]
    for key in [*(f"k.{number}" for number in range(20_000)), *hot]:
        keyed.raw.publish(f"$KV.{name}.{key}", b"v" * 100)
    keyed.raw.flush()
    process = start("dump", name, "--to", str(tmp_path / "dump"), env=keyed.env())
    while process.poll() is None:
        for key in hot:
            keyed.raw.publish(f"$KV.{name}.{key}", b"w")
        keyed.raw.flush()
    header, *entries, _ = map(json.loads, (tmp_path / "dump").read_text().splitlines())
    assert (process.returncode, header["exact"]) == (7, False)
    error = process.stderr.read().decode()
    named = {key for key in hot if f"`{key}`" in error}
    dumped = {row["key"] for row in entries}
    assert named
    assert dumped | {f"k.{number}" for number in range(20_000)} == dumped
    assert all(row["revision"] <= header["cut"] for row in entries)
    unnamed = re.search(r" and (\d+) more", error)
    assert len(set(hot) - dumped) == len(named) + (int(unnamed[1]) if unnamed else 0)


def test_a_file_appears_when_it_is_complete(filled, tmp_path):
    file = tmp_path / "b.ndjson"
    file.write_text("old")
    made = filled("dump", "B", "--to", str(file), "-o", "json")
    assert made.exit_code == 0
    assert json.loads(made.out) == {"bucket": filled.name, "file": str(file), "entries": 4, "cut": 7, "exact": True}
    assert (file.stat().st_mode & 0o777, os.listdir(tmp_path)) == (0o600, ["b.ndjson"])
    kept = file.read_bytes()
    assert filled("dump", "no-such", "--to", str(file)).exit_code == 3
    assert (file.read_bytes(), os.listdir(tmp_path)) == (kept, ["b.ndjson"])
    assert filled("dump", "B", "--to", str(tmp_path)).exit_code == 2


def test_dumps_of_one_file_at_the_same_time_leave_one_of_them_complete(tmp_path):
    file = tmp_path / "b.ndjson"
    with appearing(file) as first, appearing(file) as second:
        first.write(b"first\n" * 1000)
        second.write(b"second\n")
        first.flush()
        assert not file.exists()
    assert (file.read_bytes(), os.listdir(tmp_path)) == (b"first\n" * 1000, ["b.ndjson"])


def test_a_dump_follows_no_link_that_somebody_left_beside_it(filled, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "b.ndjson.part").symlink_to(victim)
    assert filled("dump", "B", "--to", str(tmp_path / "b.ndjson")).exit_code == 0
    assert victim.read_text() == "precious"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk_is_an_error(filled, start):
    with open("/dev/full", "wb") as full:
        process = start("dump", filled.name, env=filled.env(), stdout=full)
        assert process.wait(60) == 1
        assert b"No space left" in process.stderr.read()


def test_a_reader_that_closes_early_is_no_error(filled, start):
    process = start("dump", filled.name, env=filled.env())
    process.stdout.close()
    assert process.wait(60) == 0


def test_a_damaged_dump_is_refused(filled, unique, snapshot):
    other = unique()
    filled.raw.create_bucket(other)
    dump = filled("dump", "B").stdout
    for damaged in (dump[:-10], dump.replace(b"again", b"never"), dump[: len(dump) // 2]):
        refused = filled("load", other, "-", stdin=damaged)
        assert refused.exit_code == 4
    assert refused.masked(OTHER=other) == snapshot
    newer = filled("load", other, "-", stdin=dump.replace(b'"version": 1', b'"version": 9'))
    assert (newer.exit_code, "version 9" in newer.err) == (4, True)
    assert filled("keys", other).stdout == b""
    forced = filled("load", other, "-", "--force", "broken-dump", stdin=dump[:-10])
    assert (forced.exit_code, forced.out) == (7, "4\t0\t1\n")  # the last line is no entry


def test_bad_rows_are_named_and_the_others_written(keyed, snapshot):
    data = rows({"key": "a", "value": "1"}, {"key": "a b", "value": ""}, {"value": ""}) + b"no\n" + rows({"key": "b"})
    assert keyed("load", "B", "-", "--dry-run", stdin=data) == snapshot
    assert keyed.last_revision() == 0
    assert keyed("load", "B", "-", "--strict", stdin=data) == snapshot
    assert keyed.last_revision() == 0
    assert keyed("load", "B", "-", "-o", "json", stdin=data) == snapshot
    assert keyed.value("a") == b"1"


def test_many_bad_rows_are_counted_and_v_names_them_all(keyed):
    data = b"bad\n" * 50
    brief, whole = (keyed("load", "B", "-", *more, stdin=data) for more in ([], ["-v"]))
    assert brief.err.count("warning: Line") == 20
    assert "30 more rows" in brief.err
    assert whole.err.count("warning: Line") == 50


def test_tables_by_extension_and_by_format(keyed, tmp_path):
    table = tmp_path / "table.csv"
    table.write_bytes(
        b"\xef\xbb\xbfsku,note,count\r\n"
        b'a.1,"one, or ""two""",5\r\nb.2,"two\nlines","x\ny"\r\n\r\nbad key,,\r\nshort\r\nc.3,,"\xff"\r\n'
    )
    loaded = keyed("load", "B", str(table), "--key", "sku", "--value", "count")
    assert (loaded.exit_code, loaded.out) == (7, "3\t0\t2\n")
    assert "Line 7: `bad key` is not a key" in loaded.err
    assert "Line 8: The row has 1 fields, the heading has 3" in loaded.err
    assert (keyed.value("a.1"), keyed.value("b.2"), keyed.value("c.3")) == (b"5", b"x\ny", b"\xff")
    missing = keyed("load", "B", str(table))
    assert (missing.exit_code, "no column `key`" in missing.err, "`sku`" in missing.err) == (2, True, True)
    tabbed = b'key\tvalue\tencoding\tttl\nt.1\ta\\tb\\\\\\n"q"\t\t\nt.2\tMQ==\tbase64\t1h\n'
    assert keyed("load", "B", "-", "--format", "tsv", stdin=tabbed).out == "2\t0\t0\n"
    assert (keyed.value("t.1"), keyed.value("t.2")) == (b'a\tb\\\n"q"', b"1")


def test_fields_of_other_names(keyed):
    data = rows({"id": "a", "body": "1", "key": "other"}, {"id": "b"})
    loaded = keyed("load", "B", "-", "--key", "id", "--value", "body", stdin=data)
    assert (loaded.exit_code, loaded.out) == (7, "1\t0\t1\n")
    assert "Line 2: The row has no `body`" in loaded.err


def test_create_only_and_if_different(filled):
    data = rows({"key": "k.0", "value": "new"}, {"key": "k.2", "value": "new"}, {"key": "k.3", "value": "v3"})
    assert filled("load", "B", "-", "--create-only", stdin=data).out == "1\t2\t0\n"
    assert (filled.value("k.0"), filled.value("k.2")) == (b"v0", b"new")
    assert filled("load", "B", "-", "--if-different", stdin=data).out == "1\t2\t0\n"
    assert filled.value("k.0") == b"new"


@pytest.mark.parametrize(
    ("line", "stdin", "code"),
    [
        ("no-such -", b"", 3),
        ("B - --read-only", b"", 1),
        ("B - --read-only --dry-run", b"", 0),
        ("B -", b'[{"key": "a", "value": ""}]', 2),
        ("B - --format csv", b"a,b\n", 2),
        ("B -", b"", 0),
    ],
)
def test_what_exits_how(keyed, line, stdin, code):
    result = keyed("load", *line.split(), stdin=stdin)
    assert result.exit_code == code, result.err
    assert keyed.last_revision() == 0


def test_on_a_terminal(filled, tmp_path, snapshot):
    file = tmp_path / "b.ndjson"
    assert filled("dump", "B", "--to", str(file), tty=True) == snapshot
    assert filled("load", "B", str(file), "--if-different", tty=True) == snapshot
    filled.put("k.0", "\u202e\x1b".encode())
    shown = filled("dump", "B", tty=True)
    assert (b"\x1b" in shown.stdout, "\u202e" in shown.out, "\\u202e\\u001b" in shown.out) == (False, False, True)


@pytest.fixture
def many(tmp_path):
    """80,000 rows of 5,000 keys."""
    file = tmp_path / "many.ndjson"
    file.write_text("".join(f'{{"key": "k.{n % 5000}", "value": "{n}"}}\n' for n in range(80_000)))
    return file


@pytest.mark.guarantee("commands-6", by="kill")
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT])
def test_an_ended_load_goes_on_and_writes_nothing_twice(keyed, many, start, unique, sent):
    for _ in range(10):
        bucket = unique()
        keyed.raw.create_bucket(bucket, max_msgs_per_subject=64, storage="memory")
        process = start("load", bucket, str(many), env=keyed.env())
        stream = f"STREAM.INFO.KV_{bucket}"
        while keyed.raw.api(stream)["state"]["last_seq"] < 10_000 and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(sent)
        stderr = process.communicate()[1].decode()
        if process.returncode != 0:  # else it was through before
            break
    assert process.returncode == (130 if sent is signal.SIGINT else -sent)
    assert keyed.raw.api(stream)["state"]["last_seq"] < 80_000
    if sent is signal.SIGINT:
        assert "Run the command again with `--resume`" in stderr
    done = run_process("load", bucket, str(many), "--resume", env=keyed.env())
    assert (done.exit_code, done.out) == (0, "80000\t0\t0\n")
    state = keyed.raw.api(stream)["state"]
    assert (state["last_seq"], state["num_subjects"]) == (80_000, 5000)
    assert os.listdir(many.parent) == ["many.ndjson"]


def test_a_resumed_load_tells_how_many_rows_later_ones_replaced(keyed, tmp_path, unique):
    bucket, file = unique(), tmp_path / "rows.ndjson"
    keyed.raw.create_bucket(bucket, max_bytes=2000, discard="new")
    rows = [("k", "first"), ("k", "last"), ("big", "x" * 3000)]
    file.write_text("".join(json.dumps({"key": key, "value": value}) + "\n" for key, value in rows))
    assert keyed("load", bucket, str(file)).exit_code == 7
    assert keyed("bucket", "edit", bucket, "--max-bytes", "100000").exit_code == 0
    resumed = keyed("load", bucket, str(file), "--resume")
    assert (resumed.exit_code, resumed.out) == (0, "3\t0\t0\n")
    assert "1 written row was replaced by later rows; the bucket does not show" in resumed.err


@pytest.mark.slow
def test_memory_does_not_grow_with_the_rows(keyed, tmp_path, start):
    """Peak memory at a million rows within 30 MB of that at ten thousand, for both."""
    peaks: dict[str, list[int]] = {"load": [], "dump": []}
    for count in (10_000, 1_000_000):
        file = tmp_path / f"{count}.ndjson"
        with file.open("w") as out:
            out.writelines(f'{{"key": "k.{n:018d}", "value": "{"v" * 100}"}}\n' for n in range(count))
        for name, args in (("load", ("load", keyed.name, str(file))), ("dump", ("dump", keyed.name))):
            with open(os.devnull, "wb") as null:
                process = start(*args, env=keyed.env(), stdout=null)
                _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            assert process.returncode == 0
            peaks[name].append(usage.ru_maxrss // 1024)
    assert all(large - small < 30 for small, large in peaks.values()), peaks
