"""Registry of a write's started tasks and jobs, on the server: Spark does not report all of them.

A note is a consumer on the bucket's stream, which delivers nothing. There are two kinds:

    kvctl-write-JOB-PARTITION   by every attempt at a task: Spark may restart numbering attempts when part of a shuffle
                                was lost. The second attempt finds the first one's. The driver removes it.
    kvctl-began-JOB             once per job, before its first row: its run and last revision. A later run of
                                the same job, which may split rows into other partitions, checks what came since.

The notes of a driver that was killed expire. A stream's last batch keeps its `kvctl-began-`: Spark may run it again.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from kvctl.errors import ConflictError, KvctlError, OutcomeUnknown
from kvctl.jetstream.consumers import admin
from kvctl.kv.bulk.bulk_writer import WriteTarget
from kvctl.pipeline.write.row_ids import new_job
from kvctl.units import duration_ns

TASK_LASTS, JOB_LASTS = timedelta(days=1), timedelta(days=30)
SINCE, RUN, ATTEMPT = "kvctl.since", "kvctl.run", "kvctl.attempt"
NOTES_IN_FLIGHT = 64


@dataclass(frozen=True, slots=True)
class Beginning:
    """Beginning of a job."""

    run: str
    """First run of the job."""
    since: int
    """Revision before all rows of the job."""


async def claim(target: WriteTarget, job: str, partition: int) -> bool:
    """Return whether another attempt may have started the task.

    Without permission to create consumers, or room for them, this is unknown, and False is returned.
    """
    return await _note(target, _task(job, partition), TASK_LASTS, {ATTEMPT: new_job()}) is False


async def begin(target: WriteTarget, job: str, run: str) -> Beginning | None:
    """Return the beginning of the job, recording it if new; None if the server does not allow that.

    No row of the job may be sent before this call.
    """
    ours = Beginning(run, int(target.info["state"]["last_seq"]))
    first = await _note(target, _job(job), JOB_LASTS, {RUN: run, SINCE: str(ours.since)})
    return await _noted(target, job) if first is False else ours if first else None


async def release(target: WriteTarget, job: str) -> None:
    """Remove the notes of a job's tasks, if any. Raises KvctlError."""
    names = await admin.names(target.binding.api, target.binding.stream)
    await _remove(target, [name for name in names if name.startswith(_task(job))])


async def forget(target: WriteTarget, job: str) -> None:
    """Remove the note of a job's beginning: it is not repeated."""
    await _remove(target, [_job(job)])


async def _note(target: WriteTarget, name: str, lasting: timedelta, metadata: dict[str, str]) -> bool | None:
    """Leave a note; return False if there may be one of the name, None if the server does not allow any."""
    binding = target.binding
    config: dict[str, Any] = {
        "name": name,
        "deliver_policy": "new",
        "ack_policy": "explicit",
        "filter_subject": f"{binding.prefix}_kv.claim",
        "inactive_threshold": duration_ns(lasting),
        "metadata": metadata,
    }
    try:
        await admin.create(binding.api, binding.stream, config)
    except (ConflictError, OutcomeUnknown):
        return False
    except KvctlError:
        return None
    return True


async def _noted(target: WriteTarget, job: str) -> Beginning | None:
    with suppress(KvctlError, KeyError, ValueError):
        found = await admin.info(target.binding.api, target.binding.stream, _job(job))
        metadata = found["config"]["metadata"]
        return Beginning(metadata[RUN], int(metadata[SINCE]))
    return None


async def _remove(target: WriteTarget, names: list[str]) -> None:
    limit = asyncio.Semaphore(NOTES_IN_FLIGHT)

    async def remove(name: str) -> None:
        async with limit:
            with suppress(KvctlError):
                await admin.delete(target.binding.api, target.binding.stream, name)

    await asyncio.gather(*map(remove, names))


def _task(job: str, partition: int | str = "") -> str:
    return f"kvctl-write-{job}-{partition}"


def _job(job: str) -> str:
    return f"kvctl-began-{job}"
