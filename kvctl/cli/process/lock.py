"""`kvctl lock`: run a command under a lease."""

import asyncio
import os
from datetime import timedelta
from typing import Annotated

import kvctl
from kvctl.cli import exec
from kvctl.cli.app.command import command
from kvctl.cli.app.options import BucketName, KeyName, Program, duration, option
from kvctl.cli.app.session import Session
from kvctl.cli.keys.arguments import check_keys, open_bucket
from kvctl.cli.process import programs
from kvctl.errors import KvctlError, LeaseLost, UsageError
from kvctl.kv import lease as leases
from kvctl.units import format_duration

TTL = timedelta(seconds=30)
GIVE_UP_FRACTION = 0.9
"""Fraction of the lease's grace period: kvctl gives up the lease shortly before the watcher kills the program."""


@command(
    "lock",
    examples=[
        "kvctl lock locks deploy -- ./deploy.sh",
        "kvctl lock locks import --ttl 1m --wait-for 10m -- python import.py",
        "kvctl lock locks db.migrate --owner \"$CI_JOB_URL\" -- sh -c 'migrate && notify'",
    ],
    see=["create", "wait", "txn", "help guarantees"],
)
async def lock(
    session: Session,
    bucket: BucketName,
    key: KeyName,
    words: Program,
    ttl: Annotated[
        timedelta | None, duration("--ttl", "Time until others can take over if this holder dies [default: 30s]")
    ] = None,
    wait: Annotated[timedelta | None, duration("--wait-for", "Maximum time to wait while the lock is held")] = None,
    owner: Annotated[str | None, option("--owner", "TEXT", "Owner shown to others [default: HOST:PID]")] = None,
) -> int:
    """Run a command under a lease.

    Creates the key with a ttl, runs COMMAND, renews the key every third of the ttl, and deletes it when COMMAND has
    ended. The exit code is that of COMMAND, or 128 plus the number of a signal. SIGINT and SIGTERM are passed on to
    COMMAND. If the key is held, the exit code is 4 and the error names the owner; with --wait-for it is 9 if the key is
    still held after that time. As in a shell, the exit code is 127 if COMMAND is not found and 126 if it cannot be run.

    If the lease is lost, COMMAND is ended with SIGTERM, then with SIGKILL after a sixth of the ttl (at most 5 seconds),
    and the exit code is 9. The lease is lost when the key is deleted or overwritten, or when it cannot be renewed:
    COMMAND is ended before anyone else can take the lease. This also holds if kvctl is stopped for that long, and
    COMMAND is ended immediately if kvctl is killed. Two things cannot be ended: a COMMAND that runs as another user
    (sudo), and, in the foreground of a terminal, processes that COMMAND started.

    The value of the key is the owner. COMMAND receives KVCTL_BUCKET, KVCTL_KEY, KVCTL_OWNER and KVCTL_REVISION in its
    environment. The revision is a fencing token that increases with each holder. A store that rejects writes with a
    lower token than it has seen is also safe from a delayed holder.

    The bucket must allow per-key TTLs: `kvctl bucket edit BUCKET --marker-ttl 1s`. In a bucket with history, servers
    keep the key of a dead holder for at least the marker ttl. A waiting `lock` still takes over after the ttl of the
    lease; one without --wait-for is refused until the key has expired.
    """
    check_keys([key])
    if owner == "":
        raise UsageError("`--owner` must not be empty")
    programs.find_program(words[0])
    source = await open_bucket(session, bucket, write=True)
    name = owner or f"{os.uname().nodename}:{os.getpid()}"
    lease = await leases.acquire(
        source,
        key,
        name,
        TTL if ttl is None else ttl,
        wait=wait,
        waiting=lambda holder: session.note(f"Waiting for `{key}`, held by `{holder}`"),
    )
    program = programs.SupervisedProgram(words, grace=lease.grace * GIVE_UP_FRACTION)
    with program.signals_passed_on():
        try:
            facts = {"BUCKET": lease.bucket.name, "KEY": lease.key, "OWNER": lease.owner, "REVISION": lease.token}
            await program.start(exec.variables_of(facts), lease.deadline)
            code = await _run(program, lease)
        except LeaseLost:
            raise
        except BaseException:
            await _release(session, lease)
            raise
        await _release(session, lease)
        return code


async def _run(program: "programs.SupervisedProgram", lease: "kvctl.Lease") -> int:
    """Wait for the program and return its exit code. Raises LeaseLost after ending the program."""
    keeping = asyncio.ensure_future(lease.keep(program.allow_until))
    ended = asyncio.ensure_future(program.wait())
    try:
        await asyncio.wait((keeping, ended), return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            await program.end()
        code = await ended
        if keeping.done() or lease.over:
            await keeping
        program.finish()
        return code
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)


async def _release(session: Session, lease: "kvctl.Lease") -> None:
    try:
        await lease.release()
    except KvctlError as error:
        rest = format_duration(lease.ttl)
        session.warn(f"Could not release `{lease.key}`, it expires within {rest}: {error.message}")
