"""`kvctl lock`: one command at a time, ended when its lease is lost and with kvctl, however that ends."""

import fcntl
import itertools
import os
import random
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import _command, _environment, open_terminal
from tests.cli.keyed import Keyed
from tests.support.patience import quickest
from tests.support.waiting import until

HEARTBEAT = """
import os, sys, time
name, log = sys.argv[1], os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
until = time.monotonic() + float(sys.argv[3])
while time.monotonic() < until:
    os.write(log, b"%s %f\\n" % (name.encode(), time.monotonic()))
    time.sleep(0.01)
"""
"""Says again and again that it is inside."""
COUNTING = """
import signal, sys, time
seen = []
signal.signal(signal.SIGINT, lambda *_: seen.append(1))
print("ready", flush=True)
while not seen:
    time.sleep(0.01)
time.sleep(0.5)
print(f"{len(seen)} of them", flush=True)
sys.exit(7)
"""

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def locks(server, raw, unique):
    """A bucket for leases."""
    name = unique("LOCKS")
    raw.create_bucket(name, allow_msg_ttl=True, subject_delete_marker_ttl=10**9)
    return Keyed(name, server.url, raw)


@pytest.fixture
def hold(locks, start):
    """Starts `kvctl lock B k FLAGS -- COMMAND`, in a session of its own."""

    def begin(*args: str, **settings: object) -> "subprocess.Popen[bytes]":
        return start("lock", locks.name, "k", "-s", locks.url, *args, start_new_session=True, **settings)

    return begin


def line(process: "subprocess.Popen[bytes]") -> str:
    """The next line that the command prints."""
    return process.stdout.readline().decode().strip()


def gone(pid: int, limit: float = 60) -> bool:
    """Return True if the process ends in time."""
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


class TestRunning:
    def test_the_command_knows_its_lease_and_its_exit_code_is_kvctls(self, locks):
        script = 'echo "$KVCTL_BUCKET $KVCTL_KEY $KVCTL_OWNER $KVCTL_REVISION $1 $2"; cat; exit 3'
        command = ("--", "sh", "-c", script, "sh", "--owner", "--")
        result = locks("lock", "B", "k", "--owner", "me there", *command, stdin=b"input")
        assert result.exit_code == 3
        assert result.out == f"{locks.name} k me there 1 --owner --\ninput"
        assert locks.value("k") is None

    def test_while_it_runs_the_key_holds_the_owner_and_others_are_refused(self, locks, hold):
        holder = hold("--", "sh", "-c", "echo ready; read _")
        assert line(holder) == "ready"
        owner = f"{os.uname().nodename}:{holder.pid}"
        assert locks.value("k") == owner.encode()
        refused = locks("lock", "B", "k", "--", "true")
        assert refused.exit_code == 4
        assert f"error: `k` is held by `{owner}`, at revision 1" in refused.err
        waited = locks("lock", "B", "k", "--wait-for", "300ms", "--", "true")
        assert (waited.exit_code, f"`k` is still held by `{owner}`" in waited.err) == (9, True)
        waiter = hold("--wait-for", "120s", "--", "sh", "-c", "echo mine; exit 6")
        time.sleep(0.7)
        holder.communicate(b"\n", timeout=60)
        assert holder.returncode == 0
        assert (line(waiter), waiter.wait(60)) == ("mine", 6)

    def test_a_command_that_a_signal_ended_gives_128_and_its_number(self, locks):
        assert locks("lock", "B", "k", "--", "sh", "-c", "kill -9 $$").exit_code == 137
        assert locks.value("k") is None

    def test_what_cannot_be_run_is_said_like_in_a_shell(self, locks, tmp_path):
        plain = tmp_path / "plain"
        plain.write_text("no program")
        foreign = tmp_path / "foreign"
        foreign.write_bytes(b"\0\1\2")
        foreign.chmod(0o755)
        for command, code in (("nowhere", 127), (str(plain), 126), (str(tmp_path), 126), (str(foreign), 126)):
            result = locks("lock", "B", "k", "--", command)
            assert (result.exit_code, result.err.startswith("error: ")) == (code, True)
            assert locks.value("k") is None

    def test_a_lease_too_short_or_on_a_connection_for_reading_is_refused(self, locks):
        assert locks("lock", "B", "k", "--ttl", "10ms", "--", "true").exit_code == 2
        assert locks("lock", "B", "k", "--read-only", "--", "true").exit_code == 1
        assert locks.last_revision() == 0

    def test_what_follows_the_dashes_completes_as_files(self, locks):
        locks.put("k.1", b"")
        assert locks("__complete", "--", "lock", "B", "k").out.split() == ["k."]
        assert locks("__complete", "--", "lock", "B", "k.1", "--", "").out == "\tfiles\t\n"

    def test_a_bucket_without_ttls_says_what_helps(self, locks, raw, unique):
        plain = Keyed(unique("PLAIN"), locks.url, raw)
        raw.create_bucket(plain.name)
        refused = plain("lock", "B", "k", "--", "true")
        assert refused.exit_code == 1
        remedy = refused.err.partition("hint: Allow them with `kvctl ")[2].partition("`")[0]
        assert plain(*remedy.split()).exit_code == 0
        assert plain("lock", "B", "k", "--", "true").exit_code == 0


class TestSignals:
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_they_are_passed_on_and_the_command_decides(self, locks, hold, number):
        name = signal.Signals(number).name.removeprefix("SIG")
        holder = hold("--", "sh", "-c", f"trap 'exit 5' {name}; echo ready; while :; do sleep 0.05; done")
        assert line(holder) == "ready"
        holder.send_signal(number)
        assert holder.wait(60) == 5
        assert locks.value("k") is None

    def test_a_command_that_does_not_mind_ends_by_them(self, locks, hold):
        holder = hold("--", "sh", "-c", "echo ready; sleep 30; true")
        assert line(holder) == "ready"
        holder.terminate()
        assert holder.wait(60) == 143
        assert locks.value("k") is None

    def test_while_it_waits_they_end_kvctl(self, locks, hold):
        locks.put("k", b"other")
        waiter = hold("--wait-for", "120s", "--", "true")
        until(locks.consumers, what="watch of the waiting command")
        waiter.send_signal(signal.SIGINT)
        assert waiter.wait(60) == 130
        assert locks.value("k") == b"other"

    def test_the_terminals_reach_the_command_once(self, locks):
        master, slave = open_terminal()

        def own_terminal() -> None:
            os.setsid()
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

        words = _command(("lock", locks.name, "k", "-s", locks.url, "--", sys.executable, "-S", "-c", COUNTING))
        streams = {"stdin": slave, "stdout": slave, "stderr": slave}
        with subprocess.Popen(words, env=_environment(None), preexec_fn=own_terminal, **streams) as process:
            os.close(slave)
            try:
                seen = b""
                while b"ready" not in seen:
                    seen += os.read(master, 1000)
                os.write(master, b"\x03")
                while b"of them" not in seen:
                    seen += os.read(master, 1000)
                assert b"1 of them" in seen
                assert process.wait(60) == 7
            finally:
                process.kill()
                os.close(master)
        assert locks.value("k") is None


class TestLost:
    @pytest.mark.guarantee("leases-1")
    def test_a_deleted_lease_ends_the_command_and_all_it_started(self, locks, hold):
        holder = hold("--ttl", "6s", "--", "sh", "-c", "sleep 30 & echo $!; trap '' TERM; while :; do sleep 0.05; done")
        child = int(line(holder))
        locks.delete("k")
        begun = time.monotonic()
        assert holder.wait(60) == 9
        assert 0.9 < time.monotonic() - begun < 25  # a sixth of the ttl, after which SIGTERM is not all
        assert b"error: The lease on `k` was lost: it was deleted" in holder.communicate()[1]
        assert gone(child)

    @pytest.mark.guarantee("leases-1", by="kill")
    async def test_a_server_that_is_gone_ends_it_before_the_lease_does(self, own_server, start):
        from tests.cli.conftest import run_process

        url = own_server.url
        assert run_process("bucket", "add", "B", "--marker-ttl", "1s", "-s", url).exit_code == 0

        async def ended() -> float:
            holder = start("lock", "B", "k", "--ttl", "3s", "-s", url, "--", "sh", "-c", "echo ready; sleep 300")
            ready, begun = line(holder), time.monotonic()
            own_server.kill()
            code = holder.wait(120)
            took = time.monotonic() - begun
            own_server.start()
            assert (ready, code) == ("ready", 9)
            assert b"could not be renewed" in holder.communicate()[1]
            return took

        assert await quickest(ended, 3) < 3


class TestContenders:
    @pytest.fixture
    def log(self, tmp_path):
        return tmp_path / "log"

    def inside(self, log: Path) -> Iterator[tuple[str, float]]:
        """Return the names and times that holders recorded."""
        for text in log.read_text().splitlines():
            name, moment = text.split()
            yield name, float(moment)

    def beating(
        self, hold: Start, log: Path, name: str, seconds: int, *flags: str, ttl: float = 2
    ) -> "subprocess.Popen[bytes]":
        command = (sys.executable, "-S", "-c", HEARTBEAT, name, str(log), str(seconds))
        return hold("--ttl", f"{ttl}s", "--owner", name, *flags, "--", *command)

    def until_inside(self, log: Path, name: str, limit: float = 60) -> float:
        """Return the first time that the named holder recorded."""

        def first() -> float | None:
            moments = self.inside(log) if log.exists() else ()
            return next((moment for who, moment in moments if who == name), None)

        return until(first, what=f"`{name}` inside", within=limit) or 0

    @pytest.mark.guarantee("leases-1", by="race")
    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["kill -9", "stop"])
    def test_never_both_are_inside(self, hold, log, number):
        """The holder's kvctl is killed or stopped; its command ends before the other's begins."""

        first = self.beating(hold, log, "first", 600, ttl=4)
        self.until_inside(log, "first")
        second = self.beating(hold, log, "second", 1, "--wait-for", "300s", ttl=4)
        time.sleep(0.7)
        begun = time.monotonic()
        first.send_signal(number)
        entered = self.until_inside(log, "second", 120)
        assert second.wait(60) == 0
        moments = [moment for who, moment in self.inside(log) if who == "first"]
        stood_still = max(after - before for before, after in itertools.pairwise(moments))
        if number == signal.SIGSTOP:
            first.send_signal(signal.SIGCONT)
            assert first.wait(60) == 9
            assert b"error: The lease on `k`" in first.communicate()[1]
        # A machine that stands still for longer than what the holder keeps in reserve ends nothing in time.
        assert moments[-1] < entered or stood_still > 0.4
        assert entered < begun + 60

    @pytest.mark.guarantee("leases-1", by="kill")
    def test_what_the_command_started_ends_with_kvctl_too(self, hold):
        holder = hold("--", "sh", "-c", "sleep 60 & echo $! $$; wait")
        child, command = map(int, line(holder).split())
        holder.kill()
        assert gone(command)
        assert gone(child)

    def test_what_an_ended_command_left_in_the_background_stays(self, hold):
        holder = hold("--", "sh", "-c", "sleep 300 >/dev/null 2>&1 & echo $!")
        child = int(line(holder))
        assert holder.wait(60) == 0
        try:
            assert not gone(child, 0.3)
        finally:
            os.kill(child, signal.SIGKILL)

    @pytest.mark.guarantee("leases-1", "leases-2", by="kill")
    @pytest.mark.slow
    def test_many_contenders_whose_holders_are_killed_and_stopped(self, hold, log, seed):
        """For a while: whoever is inside may be hit; its command has ended before the next one's begins."""
        names = (f"n{number}" for number in itertools.count())
        running: dict[str, subprocess.Popen[bytes]] = {}
        stopped: list[subprocess.Popen[bytes]] = []
        until = time.monotonic() + 60
        while time.monotonic() < until:
            running = {name: process for name, process in running.items() if process.poll() is None}
            while len(running) < 3:
                name = next(names)
                running[name] = self.beating(hold, log, name, random.choice([0, 1, 4]), "--wait-for", "60s")
            time.sleep(random.uniform(0.3, 2))
            last = list(self.inside(log))[-1][0] if log.exists() and log.stat().st_size else ""
            if last in running and random.random() < 0.7:
                victim = running.pop(last)
                if random.random() < 0.5:
                    victim.kill()
                else:
                    victim.send_signal(signal.SIGSTOP)
                    stopped.append(victim)
        for process in stopped:
            process.send_signal(signal.SIGCONT)
            assert process.wait(60) in (0, 9)
        turns: dict[str, tuple[float, float]] = {}
        for name, moment in self.inside(log):
            turns[name] = (turns.get(name, (moment, 0))[0], moment)
        ordered = sorted(turns.values())
        assert len(ordered) > 8
        assert all(end < begin for (_, end), (begin, _) in itertools.pairwise(ordered))
