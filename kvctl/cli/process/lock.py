"""Running a command under a lease."""

import os
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from kvctl.cli.app.command import command, group
from kvctl.cli.app.parameters import (
    BucketName,
    KeyName,
    Program,
    duration,
)
from kvctl.cli.app.session import Session
from kvctl.cli.keys.arguments import check_keys, open_bucket
from kvctl.errors import KvctlError, LeaseLost, UsageError
from kvctl.units import format_duration

if TYPE_CHECKING:
    from kvctl.cli.process.supervisor import Guarded
    from kvctl.kv.lease import Lease

app = group()

TTL = timedelta(seconds=30)
PATIENCE = 0.9
"""Part of the lease's grace: kvctl gives the lease up a little before the program's watcher does."""


@command(
    app,
    "lock",
    examples=[
        "kvctl lock locks deploy -- ./deploy.sh",
        "kvctl lock locks import --ttl 1m --wait 10m -- python import.py",
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
        timedelta | None, duration("--ttl", help="How long others wait when this holder vanishes [default: 30s]")
    ] = None,
    wait: Annotated[timedelta | None, duration("--wait", help="Longest wait for a key that is held")] = None,
    owner: Annotated[
        str | None, typer.Option("--owner", metavar="TEXT", help="Who holds it, as others see it [default: HOST:PID]")
    ] = None,
) -> int:
    """Run a command under a lease.

    Creates the key with a ttl, runs COMMAND, renews the key at a third of the ttl, and deletes it when COMMAND has
    ended. The exit code is COMMAND's, 128 and the number for a signal; SIGINT and SIGTERM are passed on to it. Exits 4
    and names the owner when the key is held, or with --wait 9 when it still is after that time. A command that cannot
    be found is 127, one that cannot be run 126, like in a shell.

    A lease that is lost ends COMMAND: by SIGTERM, after a sixth of the ttl (5 seconds at most) by SIGKILL; the exit
    code is 9. It is lost when somebody deletes or overwrites the key, and when it cannot be renewed: COMMAND is ended
    before others can hold the lease. So it is when kvctl itself is stopped for that long, and at once when kvctl is
    killed, on every system; on Linux the kernel sees to it too. Not in reach are a COMMAND that runs as another user
    (sudo), and in the foreground of a terminal what COMMAND has started itself.

    The value of the key is the owner's text. COMMAND finds KVCTL_BUCKET, KVCTL_KEY, KVCTL_OWNER and KVCTL_REVISION in
    its environment. The revision is a fencing token, higher for each holder: a store that refuses writes with a lower
    one than it has seen is safe also from a holder that was held up.

    The bucket must allow keys a ttl of their own: `kvctl bucket edit BUCKET --marker-ttl 1s`. In a bucket with
    a history, servers keep the key of a vanished holder for the marker ttl at least; who waits takes it over after the
    ttl of the lease all the same, who does not wait is refused.
    """
    from kvctl.cli.process.programs import find_program
    from kvctl.cli.process.supervisor import Guarded
    from kvctl.kv.lease_queue import acquire

    check_keys([key])
    if owner == "":
        raise UsageError("The owner is empty")
    find_program(words[0])
    source = await open_bucket(session, bucket, write=True)
    name = owner or f"{os.uname().nodename}:{os.getpid()}"
    lease = await acquire(
        source, key, name, TTL if ttl is None else ttl, wait=wait,
        waiting=lambda holder: session.note(f"Waiting for `{key}`, held by `{holder}`"),
    )  # fmt: skip
    program = Guarded(words, grace=lease.grace * PATIENCE)
    with program.signals_passed_on():
        try:
            await program.start(_variables(lease), lease.deadline)
            code = await _run(program, lease)
        except LeaseLost:
            raise
        except BaseException:
            await _release(session, lease)
            raise
        await _release(session, lease)
        return code


async def _run(program: "Guarded", lease: "Lease") -> int:
    """The program's exit code. Raises LeaseLost, after the program was ended."""
    import asyncio

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


async def _release(session: Session, lease: "Lease") -> None:
    try:
        await lease.release()
    except KvctlError as error:
        rest = format_duration(lease.ttl)
        session.warn(f"`{lease.key}` could not be released, and goes by itself within {rest}: {error.message}")


def _variables(lease: "Lease") -> dict[bytes, bytes]:
    """What COMMAND is told."""
    facts = {
        "BUCKET": lease.bucket.name, "KEY": lease.key, "OWNER": lease.owner, "REVISION": str(lease.token)
    }  # fmt: skip
    return {f"KVCTL_{name}".encode(): os.fsencode(fact) for name, fact in facts.items()}
