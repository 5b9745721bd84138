"""Tables against a dictionary with versions: every operation, several handles, recreation, restarts, kills.

The model is a dictionary of (family, key) to value and version. After each operation all entries of the table are
compared, by scans and by gets, at the handle that wrote and at another one. Concurrent updates must have the outcomes
and leave the entries of some order in which they run one after the other.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

import pytest

import kvctl
from kvctl.errors import ConditionalUpdateError, OutcomeUnknown, TableNotFound
from kvctl.tables.changes import NO_VERSION, NOT_EXISTS, Change, Insert, Put, Remove, Version
from kvctl.tables.ranges import Families, Range
from kvctl.tables.table import Table
from kvctl.tables.table_manager import Tables

FAMILIES = (None, "", "f", "g.*")
KEYS = (b"\0", b"a", b"ab", b"b", b"b\0", b"\xff", b"\xff\xff", b"*", b"long" * 40)
VALUES = (b"", b"1", b"1", b"2", b"\0\xff" * 50)

Name = tuple[str | None, bytes]


def in_order(names: set[Name] | dict[Name, object]) -> list[Name]:
    return sorted(names, key=lambda name: (name[0] is not None, (name[0] or "").encode(), name[1]))


@dataclass
class Model:
    """Contents of a table, and earlier versions."""

    held: dict[Name, tuple[bytes, Version]] = field(default_factory=dict)
    past: list[Version] = field(default_factory=list)

    def holds(self, change: Change) -> bool:
        """Return whether the change's condition holds."""
        there = self.held.get((change.family, change.key))
        if change.version == NO_VERSION:
            return True
        return there is None if change.version == NOT_EXISTS else there is not None and there[1] == change.version

    def carry_out(self, change: Change, version: Version | None) -> None:
        """Apply a change that was reported as made."""
        self.apply(change, version)
        if version is not None:
            assert version not in self.past
            self.past.append(version)

    def apply(self, change: Change, version: Version | None) -> None:
        """Change the entries."""
        name = (change.family, change.key)
        if isinstance(change, Remove):
            assert version is None
            self.held.pop(name, None)
            return
        assert version is not None
        self.held[name] = (change.value, version)


class Run:
    """One table under random operations."""

    def __init__(self, dice: random.Random, tables: list[Tables], name: str, *, apart: bool) -> None:
        self.dice, self.tables, self.name, self.apart = dice, tables, name, apart
        self.model = Model()
        self.handles: list[Table[bytes, bytes]] = []
        self.log: list[str] = []

    async def begin(self) -> None:
        await self.tables[0].create(self.name, partitions=self.dice.choice([1, 3, 16]), apart=self.apart)
        self.handles = [await tables.open(self.name) for tables in self.tables]

    def name_of(self) -> Name:
        return self.dice.choice(FAMILIES), self.dice.choice(KEYS)

    def version_for(self, name: Name) -> Version:
        there = self.model.held.get(name)
        options = [
            NO_VERSION,
            NOT_EXISTS,
            there[1] if there else NOT_EXISTS,
            self.dice.choice(self.model.past or [NO_VERSION]),
        ]
        return self.dice.choice(options)

    def change(self, name: Name) -> Change:
        family, key = name
        value = self.dice.choice(VALUES)
        kind = self.dice.randrange(4)
        if kind == 0:
            return Insert(key, value, family)
        return (
            Remove(key, self.version_for(name), family)
            if kind == 1
            else Put(key, value, self.version_for(name), family)
        )

    async def single(self, table: Table[bytes, bytes]) -> None:
        change = self.change(self.name_of())
        self.log.append(repr(change))
        await self.make(table, [change], single=True)

    def some_changes(self) -> list[Change]:
        names = {self.name_of() for _ in range(self.dice.choice([2, 3, 12]))}
        if self.apart:
            place = self.handles[0].layout.place
            partition = place(*next(iter(names)))[:4]
            names = {name for name in names if place(*name)[:4] == partition}
        changes = [self.change(name) for name in sorted(names, key=str)]
        if self.dice.random() < 0.5:  # with conditions that hold, most of the time
            changes = [one for one in changes if self.model.holds(one)]
        return changes

    async def batch(self, table: Table[bytes, bytes]) -> None:
        changes = self.some_changes()
        self.log.append(repr(changes))
        await self.make(table, changes, single=False)

    async def together(self, _: Table[bytes, bytes]) -> None:
        """Make concurrent updates at all handles, many on the same entries; each is applied or refused by itself."""
        updates = [self.some_changes() for _ in range(self.dice.randint(2, 6))]
        self.log.append(f"together {updates!r}")
        work = [self.dice.choice(self.handles).update(changes) for changes in updates]
        outcomes = await asyncio.gather(*work, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not isinstance(outcome, (ConditionalUpdateError, OutcomeUnknown)):
                raise outcome
        if any(isinstance(outcome, OutcomeUnknown) for outcome in outcomes):
            self.log.append("unknown")
            await asyncio.sleep(0.5)  # what was under way is stored by then
            self.model.held = await self.read()
            return
        found = await self.read()
        held = _in_some_order(self.model, list(zip(updates, outcomes, strict=True)), found)
        assert held is not None, f"no order has the outcomes {outcomes} and leaves {found}"
        self.model.held = held
        for versions in outcomes:
            made = [one for one in versions if one is not None] if isinstance(versions, list) else []
            assert not set(made) & set(self.model.past)
            self.model.past += made

    async def read(self) -> dict[Name, tuple[bytes, Version]]:
        entries = [one async for page in self.handles[0].pages() for one in page.entries]
        return {(one.family, one.key): (one.value, one.version) for one in entries}

    async def make(self, table: Table[bytes, bytes], changes: list[Change], *, single: bool) -> None:
        """Make changes, and compare the table's report with the model's."""
        true = all(map(self.model.holds, changes))
        try:
            versions = [await self.alone(table, changes[0])] if single else await table.update(changes)
        except ConditionalUpdateError:
            assert not true, "refused, though every condition holds"
            return
        except OutcomeUnknown:
            await self.settle(table, changes)
            return
        assert true, "accepted, though a condition does not hold"
        for change, version in zip(changes, versions, strict=True):
            self.model.carry_out(change, version)

    async def settle(self, table: Table[bytes, bytes], changes: list[Change]) -> None:
        """Find out the outcome of unresolved changes: all of them were made, or none."""
        self.log.append("unknown")
        await asyncio.sleep(0.5)  # what was under way is stored by then
        made = 0
        for change in changes:
            name = (change.family, change.key)
            entry = await table.get(change.key, family=change.family, leader=True)
            now = entry and (entry.value, entry.version)
            if isinstance(change, Remove):
                assert now is None or now == self.model.held.get(name)
                made += now is None and name in self.model.held
            elif now != self.model.held.get(name):
                assert entry.value == change.value
                made += 1
            if now is None:
                self.model.held.pop(name, None)
            else:
                self.model.held[name] = now
                self.model.past.append(now[1])
        real = [one for one in changes if not isinstance(one, Remove)]
        assert made == 0 or made >= len(real), "a part of a batch"

    @staticmethod
    async def alone(table: Table[bytes, bytes], change: Change) -> Version | None:
        if isinstance(change, Insert):
            return await table.put_if_absent(change.key, change.value, family=change.family)
        if isinstance(change, Put):
            return await table.replace(change.key, change.value, change.version, family=change.family)
        await table.remove(change.key, change.version, family=change.family)
        return None

    async def recreate(self, _: Table[bytes, bytes]) -> None:
        """Recreate the table with other partitions; the old handles do no harm."""
        self.log.append("recreate")
        stale, self.handles = self.handles, []
        await self.tables[0].delete(self.name)
        self.model.held.clear()
        await self.begin()
        for handle in stale:
            family, key = self.name_of()
            for attempt in (
                handle.put(key, b"stale", family=family),
                handle.put_if_absent(key, b"stale", family=family),
                handle.update([Put(key, b"stale", family="f"), Insert(key + b"!", b"stale", "f")]),
            ):
                with pytest.raises(TableNotFound):
                    await attempt

    async def step(self) -> None:
        table = self.dice.choice(self.handles)
        kinds = (
            [self.single] * 6 + [self.batch] * 4 + [self.together] * 3 + [self.recreate] * (self.dice.random() < 0.1)
        )
        await self.dice.choice(kinds)(table)
        await self.compare(table if table in self.handles else self.handles[0])
        if self.dice.random() < 0.2:
            await self.compare(self.dice.choice(self.handles))

    async def compare(self, table: Table[bytes, bytes]) -> None:
        """Read all contents, and a part of them, in every way."""
        wanted = [(name, *self.model.held[name]) for name in in_order(self.model.held)]
        size, limit = self.dice.choice([1, 3, 1000]), self.dice.choice([None, 1, 5])
        found = [one async for page in table.pages(size=size) for one in page.entries]
        assert [((one.family, one.key), one.value, one.version) for one in found] == wanted  # type: ignore[union-attr]
        names = [(family, key) for family in FAMILIES for key in KEYS]
        for family in FAMILIES:
            entries = await table.get_all(KEYS, family=family)
            got = {
                (family, key): entry and (entry.value, entry.version) for key, entry in zip(KEYS, entries, strict=True)
            }
            assert got == {name: self.model.held.get(name) for name in names if name[0] == family}
        of = Range(self.dice.choice([Families.ALL, *FAMILIES]), prefix=self.dice.choice([b"", b"a", b"\xff"]))
        inside = [
            name
            for name, *_ in wanted
            if (of.family is Families.ALL or name[0] == of.family) and name[1].startswith(of.prefix)
        ]
        listed: list[Name] = []
        after: str | None = None
        while True:
            pages = [page async for page in table.pages(of, values=False, after=after, limit=limit)]
            listed += [(one.family, one.key) for page in pages for one in page.entries]
            if (after := pages[-1].next) is None:
                break
        assert listed == inside


def _in_some_order(
    model: Model, left: list[tuple[list[Change], Any]], found: dict[Name, tuple[bytes, Version]]
) -> dict[Name, tuple[bytes, Version]] | None:
    """Return the entries after an order of updates that explains their outcomes and leaves `found`; None for none."""
    if not left:
        return model.held if model.held == found else None
    for at, (changes, versions) in enumerate(left):
        if all(map(model.holds, changes)) != isinstance(versions, list):
            continue
        after = Model(dict(model.held), model.past)
        for change, version in zip(changes, versions if isinstance(versions, list) else (), strict=False):
            after.apply(change, version)
        held = _in_some_order(after, left[:at] + left[at + 1 :], found)
        if held is not None:
            return held
    return None


@pytest.mark.oracle
async def test_tables_hold_what_a_dictionary_holds(own_server, apart, seed, steps):
    dice = random.Random(f"{seed} {apart}")
    async with kvctl.connect(own_server.url) as one, kvctl.connect(own_server.url) as other:
        run = Run(dice, [Tables(one), Tables(other)], "T", apart=apart)
        await run.begin()
        try:
            for number in range(steps(80)):
                if number % 40 == 39:  # what was acknowledged on this server survives its being killed
                    run.log.append("kill")
                    own_server.kill()
                    own_server.start()
                await run.step()
        except BaseException:
            print(*run.log[-12:], sep="\n")
            raise
