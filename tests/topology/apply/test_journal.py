"""The journal: the next apply reports one that was killed; an unwritable journal stops nothing."""

from kvctl.topology.apply.journal import Journal
from tests.cli.conftest import run_process
from tests.topology import killed


def test_journal_reports_interrupted_apply(tmp_path):
    journal = Journal(tmp_path / "deep" / "t.ndjson")
    assert journal.interrupted() is None
    journal.begin(3)
    journal.note(0, "begun", "create bucket `A`", ("", "KV_A"))
    journal.note(0, "done", "create bucket `A`", ("", "KV_A"))
    journal.note(1, "begun", "create bucket `B`", ("", "KV_B"))
    found = journal.interrupted()
    assert found is not None
    assert (found.done, found.total, found.doing) == (1, 3, "create bucket `B`")
    assert journal.path.stat().st_mode & 0o777 == 0o600
    with journal.path.open("a") as file:
        file.write('{"write": 1, "sta')  # killed while it wrote
    assert journal.interrupted() == found
    journal.begin(1, found.filling)
    assert (journal.interrupted() or found).total == 1
    assert (journal.interrupted() or found).filling == found.filling
    journal.end()
    assert journal.interrupted() is None


def test_unwritable_journal_does_not_stop_an_apply(tmp_path):
    (tmp_path / "file").write_text("x")
    journal = Journal(tmp_path / "file" / "t.ndjson")
    journal.begin(1)
    journal.note(0, "begun", "create bucket `A`", ("", "KV_A"))
    journal.end()
    assert journal.interrupted() is None
    (tmp_path / "file").write_text("[]\n7\n")
    assert Journal(tmp_path / "file").interrupted() is None


async def test_journal_belongs_to_topology_and_servers(client, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    one = Journal.of("t", {"": client.api})
    assert one.path.parent == tmp_path / "kvctl" / "topology"
    others = [Journal.of("u", {"": client.api}), Journal.of("t", {"": client.api.at("$JS.x.API")})]
    assert len({journal.path for journal in (one, *others)}) == 3


def test_next_apply_reports_the_killed_one(raw, server, unique, tmp_path):
    first, second, file = unique(), unique(), tmp_path / "t.yaml"
    file.write_text(f"version: 1\nname: {unique('t')}\nbuckets: {{{first}: {{}}, {second}: {{}}}}\n")
    apply = ["topology", "apply", "-f", str(file), "--yes", "-s", server.url]
    assert killed.run(apply, at=1)[0] == killed.KILLED
    text = f"ended after 1 of 2 writes, at create bucket `{second}`; apply again to complete it"
    assert text in run_process("topology", "plan", "-f", str(file), "-s", server.url).err
    again = run_process(*apply)
    assert (again.exit_code, text in again.err) == (0, True)
    assert "ended after" not in run_process(*apply).err


def test_next_apply_waits_for_replicas_of_the_killed_one(raw, server, unique, tmp_path, monkeypatch):
    bucket, aggregate, file = unique(), unique("A"), tmp_path / "t.yaml"
    raw.create_bucket(bucket)
    raw.put(bucket, "k", b"x" * 5000)
    file.write_text(
        f"version: 1\nname: {unique('t')}\naggregates: {{{aggregate}: {{origins: [{bucket}], max_value_size: 1KiB}}}}\n"
    )
    apply = ["topology", "apply", "-f", str(file), "--yes", "--force", "smaller-limits", "-s", server.url]
    assert killed.run(apply, at=0, answered=True)[0] == killed.KILLED
    for machine in ("this", "another"):  # it does not fill, though its lag is 0, and that is said until it has
        if machine == "another":
            monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
        again = run_process(*apply, "--wait-for", "1s")
        assert (again.exit_code, f"`{bucket}`: at revision 0 of 1" in again.err) == (9, True)
    config = raw.api(f"STREAM.INFO.KV_{aggregate}")["config"]
    raw.api(f"STREAM.UPDATE.KV_{aggregate}", {**config, "max_msg_size": -1})
    file.write_text(file.read_text().replace(", max_value_size: 1KiB", ""))
    assert run_process(*apply).exit_code == 0
    assert run_process(*apply).err == "Nothing to change\n"
