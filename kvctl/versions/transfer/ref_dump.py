"""Dump a repository at a ref into a file that `load` reads."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Any, BinaryIO

from kvctl.kv.bulk.dump_file import DumpWriter, entry_line
from kvctl.kv.bulk.dumper import Dumped
from kvctl.units import format_time
from kvctl.versions import commits, ref_reader, refs
from kvctl.versions.model import leaf_value
from kvctl.versions.ref_reader import Selection
from kvctl.versions.repository import Repository


async def dump(
    repository: Repository,
    name: str,
    config: dict[str, Any],
    ref: str,
    file: BinaryIO,
    filters: Sequence[str] = (),
    *,
    advance: Callable[[int], None] = lambda _: None,
) -> Dumped:
    """Write the keys at a ref, for a branch with its staged changes, into an empty file; the cut is a commit's id.

    `staged` in the header is the number of keys staged on top of that commit. Raises RefNotFound, UsageError, OSError.
    """
    state = await ref_reader.state(repository.store, await refs.resolve(repository.store, ref))
    stored = {key: None if value is None else leaf_value(value)[0] for key, value in state.staged.items()}
    staged = len(await commits.differing(repository.objects, state.root, stored))
    header = {
        "bucket": name,
        "config": config,
        "cut": state.commit,
        "ref": ref,
        **({"staged": staged} if staged else {}),
        "created": format_time(time.time_ns()),
        "history": False,
        **({"filters": list(filters)} if filters else {}),
    }
    writer = DumpWriter(file, header)
    async with aclosing(ref_reader.batches(repository.objects, state, Selection(tuple(filters)))) as batches:
        async for batch in batches:
            writer.add(b"".join([entry_line(name, entry.key, entry.value) for entry in batch]), len(batch))
            advance(len(batch))
    return Dumped(writer.entries, state.commit, writer.finish(exact=True))
