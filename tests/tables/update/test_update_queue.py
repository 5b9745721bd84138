"""Queue of updates: whoever comes while batches end is served, too."""

import asyncio
from collections.abc import Sequence

from kvctl.tables.changes import Change, Put
from kvctl.tables.update.batch import KeySpace, prepare
from kvctl.tables.update.update_queue import IN_FLIGHT, Update, UpdateQueue

SPACE = KeySpace("$KV.t.", 1, 1, False, 1 << 20)


async def test_update_in_the_moment_in_which_all_batches_end_is_applied():
    answered = asyncio.Event()
    applied: list[bytes] = []

    async def store(group: Sequence[Update]) -> None:
        await answered.wait()  # wakes all batches in flight at once, as one read of the socket does
        for update in group:
            applied.extend(change.key for change in update.batch.changes)
            update.succeed([])

    queue = UpdateQueue(store)

    async def writer(*keys: bytes) -> None:
        for key in keys:
            changes: list[Change] = [Put(key, b"")]
            await queue.apply(Update(prepare(changes, SPACE), frozenset()))

    writers = [writer(b"first", b"second"), *(writer(b"%d" % number) for number in range(1, IN_FLIGHT))]
    tasks = []
    for one in writers:
        tasks.append(asyncio.create_task(one))
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # its batch is in flight alone
    answered.set()
    await asyncio.wait_for(asyncio.gather(*tasks), 5)
    assert sorted(applied) == [b"1", b"2", b"3", b"first", b"second"]
