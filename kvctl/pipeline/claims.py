"""Tasks of a write that were begun, noted on the server: Spark does not always tell a task that it is run again.

Where a part of a shuffle was lost it numbers the attempts anew. So every attempt makes a consumer of one name on the
bucket's stream, which delivers nothing; the second one meets the first one's. The driver removes them; those of a
driver that was killed go by themselves.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta

from kvctl.errors import ConflictError, ConnectionLost, KvctlError, RequestTimeout
from kvctl.jetstream import consumers
from kvctl.kv.load_target import Target
from kvctl.pipeline.row_ids import new_job
from kvctl.quantities import duration_ns

LASTING = timedelta(days=1)
SINCE, ATTEMPT = "kvctl.since", "kvctl.attempt"
AT_ONCE = 64


async def claim(target: Target, job: str, partition: int) -> tuple[bool, int | None]:
    """Whether another attempt may have begun the task, and the bucket's last revision before that, where it is known.

    Without permission to make consumers, or room for them, it is not known: that is taken for a no.
    """
    binding, name = target.binding, _name(job, partition)
    config = {
        "name": name, "deliver_policy": "new", "ack_policy": "explicit",
        "filter_subject": f"{binding.prefix}_kv.claim", "inactive_threshold": duration_ns(LASTING),
        "metadata": {SINCE: str(target.info["state"]["last_seq"]), ATTEMPT: new_job()},
    }  # fmt: skip
    try:
        await consumers.create(binding.api, binding.stream, config)
    except ConflictError:
        with suppress(KvctlError, KeyError, ValueError):
            found = await consumers.info(binding.api, binding.stream, name)
            return True, int(found["config"]["metadata"][SINCE])
        return True, None
    except (ConnectionLost, RequestTimeout):
        return True, None
    except KvctlError:
        pass
    return False, None


async def release(target: Target, job: str, partitions: int) -> None:
    """Remove what the tasks of a job have left, as far as there is anything."""
    limit = asyncio.Semaphore(AT_ONCE)

    async def remove(partition: int) -> None:
        async with limit:
            with suppress(KvctlError):
                await consumers.delete(target.binding.api, target.binding.stream, _name(job, partition))

    await asyncio.gather(*(remove(partition) for partition in range(partitions)))


def _name(job: str, partition: int) -> str:
    return f"kvctl-write-{job}-{partition}"
