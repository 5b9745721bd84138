"""Content-addressed objects in a Store: chunks of trees, large values; read by many at once, kept for a while."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from kvctl.errors import KvctlError
from kvctl.versions.model import apart_id, inline_value
from kvctl.versions.store import EntryNotFound, Store
from kvctl.versions.tree import Reading

OBJECTS = b"objects"
AT_ONCE = 64
CACHE = 64 << 20
"""Bytes of objects that are kept: they never change."""

T = TypeVar("T")


class Broken(KvctlError):
    """An object that a commit needs is not there."""


class Objects:
    """The objects of a repository."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._held: OrderedDict[bytes, bytes] = OrderedDict()
        self._size = 0

    async def carry(self, reading: Reading[T]) -> T:
        """Carry a reading of trees out. Raises Broken."""
        try:
            wanted = next(reading)
            while True:
                wanted = reading.send(await self.read(wanted))
        except StopIteration as end:
            result: T = end.value
            return result

    async def read(self, wanted: Iterable[bytes]) -> dict[bytes, bytes]:
        """Objects by their ids. Raises Broken."""
        found: dict[bytes, bytes] = {}
        slots = asyncio.Semaphore(AT_ONCE)

        async def one(identity: bytes) -> None:
            async with slots:
                found[identity] = await self._one(identity)

        await asyncio.gather(*(one(identity) for identity in wanted))
        return found

    async def values(self, stored: Sequence[bytes]) -> list[bytes]:
        """The values that leaves stand for, those apart included."""
        apart = {apart_id(item) for item in stored if inline_value(item) is None}
        objects = await self.read(apart)
        return [objects[apart_id(item)] if (value := inline_value(item)) is None else value for item in stored]

    async def write(self, objects: Mapping[bytes, bytes]) -> None:
        """Store objects; again is harmless."""
        slots = asyncio.Semaphore(AT_ONCE)

        async def one(identity: bytes, data: bytes) -> None:
            async with slots:
                await self._store.set(OBJECTS, identity, data)

        await asyncio.gather(*(one(*item) for item in objects.items()))
        self.keep(objects)

    def keep(self, objects: Mapping[bytes, bytes]) -> None:
        """Have these at hand."""
        for identity, data in objects.items():
            if identity not in self._held:
                self._held[identity] = data
                self._size += len(data)
        while self._size > CACHE:
            _, data = self._held.popitem(last=False)
            self._size -= len(data)

    async def _one(self, identity: bytes) -> bytes:
        if identity in self._held:
            self._held.move_to_end(identity)
            return self._held[identity]
        try:
            data = (await self._store.get(OBJECTS, identity)).value
        except EntryNotFound:
            raise Broken(f"Object `{identity.hex()}` is gone", hint="`kvctl doctor` says what refers to it") from None
        self.keep({identity: data})
        return data
