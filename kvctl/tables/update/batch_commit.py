"""Commit of updates: several in one atomic batch, each with its own outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from kvctl.errors import (
    ConditionsFailed,
    KvctlError,
    OutcomeUnknown,
    PermissionDenied,
    ServerError,
    UsageError,
    WrongRevision,
)
from kvctl.kv.transaction import execution
from kvctl.kv.transaction.transaction import Transaction
from kvctl.tables.changes import NO_VERSION, NOT_EXISTS, Change, Remove
from kvctl.tables.stored_entries import Layout
from kvctl.tables.update.batch import versions
from kvctl.tables.update.conflicts import refusal, unknown
from kvctl.tables.update.update_queue import Made, Update


async def store(layout: Layout, group: Sequence[Update], *, fresh: bool = True) -> None:
    """Apply updates of one stream in one batch; if it is refused, only those that are to blame fail.

    `fresh` assumes that no inserted key was ever written. If only markers of removed entries conflict, or an absent
    entry has appeared, the update is repeated without.
    """
    try:
        made = await _commit(layout, group, fresh=fresh)
    except ConditionsFailed as error:
        await _refused(layout, group, error, fresh=fresh)
    except OutcomeUnknown:
        for update in group:
            first = update.batch.changes[0]
            update.fail(unknown(layout.config.name, first.family, first.key))
    except (UsageError, ServerError, PermissionDenied, WrongRevision) as error:
        if len(group) == 1:
            group[0].fail(error)
        else:  # one of them may be to blame
            await asyncio.gather(*(store(layout, [update]) for update in group))
    except KvctlError as error:
        for update in group:
            update.fail(error)
    else:
        for update, own in zip(group, made, strict=True):
            update.succeed(own)


async def _refused(layout: Layout, group: Sequence[Update], error: ConditionsFailed, *, fresh: bool) -> None:
    """Fail the updates whose conditions do not hold, and apply the others."""
    found = {failure.key: layout.entry(failure.key, failure.found) for failure in error.failures}
    others = []
    for update in group:
        places = update.batch.places
        if len(group) > 1 and found.keys().isdisjoint(places):
            others.append(update)
            continue
        problem = refusal(zip(places, update.batch.changes, strict=True), found)
        if problem.failed or not fresh:
            update.fail(problem)
        else:
            await store(layout, [update], fresh=False)
    if len(others) == len(group):  # the keys cannot be read
        await asyncio.gather(*(store(layout, [update]) for update in others))
    elif others:
        await store(layout, others)


async def _commit(layout: Layout, group: Sequence[Update], *, fresh: bool) -> list[Made]:
    """Commit updates together, and return the versions of each."""

    def transaction() -> Transaction:
        made = Transaction()
        for update in group:
            for place, change in zip(update.batch.places, update.batch.changes, strict=True):
                if fresh and place in update.absent:
                    made.expect(place, absent=True)
                else:
                    _add(layout, made, place, change, fresh=fresh)
        return made

    first = group[0].batch.place(0)
    bucket = layout.bucket(first)
    try:
        if fresh and all(update.ready for update in group):
            messages = [message for update in group for message in update.batch.messages]
            committed = execution.commit_ready(bucket, messages, transaction)
            revisions = iter(await layout.mapped(committed, first))
            return [versions(update.batch, [next(revisions) for _ in update.batch.messages]) for update in group]
        whole = transaction()
        written = await layout.mapped(bucket.commit(whole), first)
    except WrongRevision:
        await layout.check_life(now=True)
        raise
    at = dict(zip((change.key for change in whole.changes), written, strict=True))
    return [versions(update.batch, [at.get(place, 0) for place in update.batch.places]) for update in group]


def _add(layout: Layout, transaction: Transaction, place: str, change: Change, *, fresh: bool) -> None:
    """Add a change to the transaction."""
    version = change.version
    revision = None if version.special else layout.sequence(version)
    if isinstance(change, Remove):
        if version == NOT_EXISTS:
            transaction.expect(place, absent=True)
        else:
            transaction.purge(place, revision=revision)
    elif revision is not None:
        transaction.update(place, change.value, revision)
    elif version == NO_VERSION:
        transaction.put(place, change.value)
    elif fresh:
        transaction.update(place, change.value, 0)
    else:
        transaction.create(place, change.value)
