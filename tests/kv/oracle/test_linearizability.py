"""Writes, transactions, tables and leases of several processes over a faulty network, against plain models.

The proxy cuts connections at any byte, before and after the server saw a request, loses requests and answers, delays
them, and delivers requests of connections that were replaced long ago.
"""

import itertools
import json
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import pytest

import kvctl
from kvctl.server import Server
from tests.support.linearizability import Change, Condition, Operation, check
from tests.support.proxy import ANY, Action, Cut, Delay, Late, LoseAnswer, Proxy, Swallow
from tests.support.raw import RawClient

ROOT = Path(__file__).parents[3]
PROCESSES, TASKS, OPERATIONS = 3, 2, 7
LEASE_S = 1.5
TIMEOUT_S = 0.8
"""How long workers wait for answers that do not come."""


class Faults:
    """What happens to the requests that pass, at random."""

    def __init__(self, seed: int, share: float = 0.15) -> None:
        self._random = random.Random(seed)
        self._share = share
        self.counts: Counter[str] = Counter()

    def __call__(self, frame: bytes) -> Action | None:
        write = b"\r\nKvctl-Id: " in frame or b"\r\nNats-Batch-Id: " in frame
        if not write and b".STREAM.MSG.GET." not in frame:
            return None
        if self._random.random() > (self._share if write else self._share / 4):
            return None
        action = self._action(frame)
        self.counts[type(action).__name__] += 1
        return action

    def _action(self, frame: bytes) -> Action:
        draw = self._random.random()
        asks = len(frame[: frame.index(b"\r\n")].split()) == (5 if frame.startswith(b"HPUB") else 4)
        if draw < 0.3 and asks:
            return LoseAnswer(cut=draw < 0.25)
        if draw < 0.5:
            return Cut(self._random.randrange(len(frame)))
        if draw < 0.65:
            return Cut(-1)
        if draw < 0.9:
            return Late(self._random.choice((0.02, 0.1, 0.4)))
        return Swallow() if draw < 0.93 else Delay(self._random.random() * 0.1)


class Workers:
    """Processes that operate on the same keys through the proxy."""

    def __init__(self, url: str) -> None:
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.kv.oracle.register_worker", f"p{number}", url, str(TIMEOUT_S)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
            )
            for number in range(PROCESSES)
        ]

    def run(self, seed: int, **order: object) -> list[Operation]:
        """One episode: the operations of all processes."""
        for number, process in enumerate(self._processes):
            process.stdin.write(json.dumps({"seed": seed * 1000 + number * 100, **order}) + "\n")
            process.stdin.flush()
        history = []
        for number, process in enumerate(self._processes):
            line = process.stdout.readline()
            assert line, f"process {number} ended with {process.wait(60)}"
            lines = json.loads(line)
            history += [operation(f"p{number}", *line) for line in lines]
        return history

    def end(self) -> None:
        for process in self._processes:
            process.communicate(timeout=60)


def operation(
    process: str, kind: str, call: float, end: float, outcome: str, conditions: list[list[object]], changes: object
) -> Operation:
    asked = tuple(Condition(*item) for item in conditions)  # type: ignore[arg-type]
    return Operation(process, kind, call, end, outcome, asked, tuple(Change(*item) for item in changes))  # type: ignore[attr-defined]


@pytest.fixture
def faults(seed):
    return Faults(seed)


@pytest.fixture
def proxy(own_server, faults):
    with Proxy(own_server.url) as running:
        running.on(ANY, faults, times=None)
        yield running


@pytest.fixture
def workers(proxy):
    running = Workers(proxy.url)
    yield running
    running.end()


@pytest.mark.guarantee("writing-1", "writing-2", "writing-5", "writing-6", "transactions-1", "reading-2")
@pytest.mark.oracle
def test_operations_of_several_processes_can_be_put_in_one_order(own_server, workers, faults, seed, steps):
    draw, done, episode, counts = random.Random(seed), 0, 0, Counter[str]()
    with RawClient(own_server.url) as raw:
        raw.create_bucket("B", max_msgs_per_subject=64, allow_atomic=True)
    _kvctl(own_server, "table", "create", "t", "--partitions", "1")
    while done < steps(300):
        episode += 1
        table = draw.random() < 0.3
        restart = threading.Timer(draw.random() * 0.5, own_server.restart)
        if draw.random() < 0.1:
            restart.start()
        keys = [f"e{episode}.{number}" for number in range(2)]
        history = workers.run(
            draw.randrange(10**6),
            bucket="B",
            table="t" if table else None,
            keys=keys,
            tasks=TASKS,
            operations=OPERATIONS,
        )
        restart.cancel()
        if restart.is_alive():
            restart.join()
        if not table:
            history += _last(own_server, keys)
            _check_stored(own_server, keys, history)
        counts.update(op.outcome for op in history)
        try:
            check(history, len(keys))
        except AssertionError as error:
            error.add_note(f"--seed {seed}, episode {episode}, keys {keys}")
            raise
        done += len(history)
    print(f"{done} operations in {episode} episodes: {dict(counts)}; faults: {dict(faults.counts)}")


def _kvctl(server: Server, *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "kvctl", "-s", server.url, *arguments], check=True, capture_output=True)


def _last(server: Server, keys: list[str]) -> list[Operation]:
    """Reads of what is left in the end."""
    found = []
    for key, entries in enumerate(_entries(server, keys)):
        revision, value = entries[-1] if entries else (0, None)
        now = time.monotonic()
        condition = Condition(key, value is not None, revision, value)
        found.append(Operation("end", "read", now, time.monotonic(), "ok", (condition,)))
    return found


def _check_stored(server: Server, keys: list[str], history: list[Operation]) -> None:
    """Each revision that was reported is stored, once; and nothing is stored that nobody wrote."""
    for key, entries in enumerate(_entries(server, keys)):
        changes = [(op, change) for op in history for change in op.changes if change.key == key]
        reported = [(change.revision, change.value) for op, change in changes if op.outcome == "ok"]
        assert len({revision for revision, _ in reported}) == len(reported), f"reported twice: {sorted(reported)}"
        assert set(reported) <= set(entries)
        unknown = Counter(change.value for op, change in changes if op.outcome == "unknown")
        extra = Counter(value for _, value in set(entries) - set(reported))
        assert extra <= unknown, f"of {keys[key]}: {extra} stored, {unknown} unknown"


def _entries(server: Server, keys: list[str]) -> list[list[tuple[int, str | None]]]:
    """Revisions and values of each key, oldest first."""
    import asyncio

    async def read() -> list[list[tuple[int, str | None]]]:
        async with kvctl.connect(server.url) as client:
            bucket = client.bucket("B")
            return [
                [
                    (entry.revision, entry.value.decode() if entry.operation == "PUT" else None)
                    async for entry in bucket.history(key)
                ]
                for key in keys
            ]

    return asyncio.run(read())


class Stalls:
    """Cuts single processes off for a time, now and then, without a connection being closed; a context manager."""

    def __init__(self, proxies: Sequence[Proxy], seed: int) -> None:
        self._proxies = proxies
        self._random = random.Random(seed)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.count = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(self._random.random() * LEASE_S):
            proxy = self._random.choice(self._proxies)
            self.count += 1
            proxy.stall()
            self._over.wait(self._random.choice((0.2, 0.6, 1.0, 1.4)) * LEASE_S)
            proxy.resume()


@pytest.mark.guarantee("leases-1")
@pytest.mark.oracle
def test_leases_of_several_processes_never_overlap_and_tokens_rise(own_server, faults, seed, steps):
    with RawClient(own_server.url) as raw:
        limits = {"allow_msg_ttl": True, "subject_delete_marker_ttl": 1_000_000_000}
        raw.create_bucket("L", max_msgs_per_subject=1, **limits)
    takings = max(steps(6) // PROCESSES, 1)
    with ExitStack() as stack:
        proxies = [stack.enter_context(Proxy(own_server.url)) for _ in range(PROCESSES)]
        for proxy in proxies:
            proxy.on(ANY, faults, times=None)
        stalls = stack.enter_context(Stalls(proxies, seed))
        told = _takings(proxies, takings, seed)
    told.sort(key=lambda taking: taking[1])
    for before, after in itertools.pairwise(told):
        assert before[2] <= after[1], f"held by two: {before} and {after} (--seed {seed})"
        assert before[0] < after[0], f"tokens fall: {before} and {after} (--seed {seed})"
    assert len(told) >= takings * PROCESSES / 2
    lost = sum(taking[3] for taking in told)
    print(f"{len(told)} takings, {lost} lost, {stalls.count} stalls; faults: {dict(faults.counts)}")


def _takings(proxies: Sequence[Proxy], takings: int, seed: int) -> list[tuple[int, float, float, bool]]:
    """When each process held the lease: token, begin, end, whether it was lost."""
    command = [sys.executable, "-m", "tests.kv.lease_worker"]
    processes = [
        subprocess.Popen(
            [*command, f"p{number}", proxy.url, f"{TIMEOUT_S}", f"{LEASE_S}", f"{takings}", f"{seed * 10 + number}"],
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        for number, proxy in enumerate(proxies)
    ]
    told = []
    for process in processes:
        output, _ = process.communicate(timeout=60 + takings * PROCESSES * LEASE_S * 3)
        assert process.returncode == 0
        told += [tuple(json.loads(line)) for line in output.splitlines()]
    return told
