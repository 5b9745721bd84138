"""Branches, tags and commits by name: ref expressions, and commits as they were read."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from contextlib import aclosing, suppress
from typing import NamedTuple

from kvctl.deferred import pattern
from kvctl.errors import NotFoundError, UsageError
from kvctl.versions.model import Branch, Commit, record_key
from kvctl.versions.store.protocol import Store, StoreChange, StoreCondition, StoredValue

BRANCHES, TAGS, COMMITS = b"branches", b"tags", b"commits"
MAIN = "main"
"""Name of the first branch."""
LISTED_AFTER_S = 0.25
"""Seconds that a walk waits for single commits before it lists all, which takes as long as reading a twentieth."""
LISTED_BYTES = 64 << 20
"""Maximum bytes of the commits listed."""
SHORTEST = 4
"""Minimum characters of an id's prefix."""
MOST_DIGITS = 18
"""Maximum digits of a step's number: no history is that long."""

_NAME_PATTERN = r"[a-zA-Z0-9_][-a-zA-Z0-9_/]*(?:\.[-a-zA-Z0-9_/]+)*"
_NAME = pattern(rf"{_NAME_PATTERN}\Z")
_EXPRESSION = pattern(rf"({_NAME_PATTERN})([@$]?)((?:[~^]\d*)*)\Z")
_ID = pattern(r"[0-9a-f]{40}")
_STEP = pattern(r"([~^])(\d*)")


class BranchNotFound(NotFoundError, kind="branch-not-found"):
    """Branch that does not exist."""

    def __init__(self, branch: str) -> None:
        super().__init__(f"Branch `{branch}` does not exist", hint="`kvctl branch ls` lists branches")


class RefNotFound(NotFoundError, kind="ref-not-found"):
    """Ref that names no branch, tag or commit."""


class BranchRecord(NamedTuple):
    """Branch as it was read."""

    name: str
    branch: Branch
    revision: int

    @property
    def unchanged(self) -> StoreCondition:
        """Return the condition that it is as read: nothing was sealed, folded, dropped or committed since."""
        return StoreCondition(BRANCHES, self.name.encode(), self.revision)

    def replaced(self, branch: Branch) -> StoreChange:
        """Return the change that replaces it."""
        return StoreChange(BRANCHES, self.name.encode(), branch.encode())

    @classmethod
    def of(cls, name: str, found: StoredValue | None) -> BranchRecord:
        """Return the record of a stored value. Raises BranchNotFound for none."""
        if found is None:
            raise BranchNotFound(name)
        return cls(name, Branch.decode(found.value), found.revision)


class Ref(NamedTuple):
    """Resolved ref expression."""

    commit: str
    root: str | None = None
    """Hex id of its tree, if known."""
    record: BranchRecord | None = None
    """Branch whose staged changes belong to it; None for committed state only."""

    @property
    def branch(self) -> str | None:
        """Name of the branch."""
        return None if self.record is None else self.record.name


def check_name(name: str, what: str = "branch") -> str:
    """Return the name of a branch or tag. Raises UsageError."""
    if not _NAME.match(name) or len(name) > 128:
        raise UsageError(
            f"`{name}` is not a valid {what} name",
            hint="Use `A-Z a-z 0-9 _ - /` and single dots, at most 128 characters",
        )
    return name


def check_new_name(name: str, what: str = "branch") -> str:
    """Return the name of a branch or tag to create. Raises UsageError, also for one that looks like a commit id.

    Existing branches with such names, from earlier versions, can still be read, written and deleted.
    """
    if _ID.fullmatch(name):
        raise UsageError(f"`{name}` looks like a commit id, not a {what} name", hint="Choose another name")
    return check_name(name, what)


async def branch(store: Store, name: str) -> BranchRecord:
    """Read the record of a branch. Raises BranchNotFound."""
    return BranchRecord.of(name, await store.get(BRANCHES, record_key(name)))


async def commit(store: Store, identity: str) -> Commit:
    """Return a commit by its complete id. Raises RefNotFound."""
    if (found := await store.get(COMMITS, bytes.fromhex(identity))) is None:
        raise RefNotFound(f"Commit `{identity}` does not exist")
    return Commit.decode(found.value)


class CommitReader:
    """Commits as one operation reads them, each once: they never change. A long walk lists many together."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, Commit] = {}
        self._listed: dict[bytes, bytes] | None = None
        """Records that were listed."""
        self._waited_s = 0.0

    async def get(self, identity: str, *, keep: bool = True) -> Commit:
        """Return a commit by its complete id; `keep` if it may be asked for again. Raises RefNotFound."""
        if (known := self._known.get(identity)) is None:
            known = await self._read(identity)
            if keep:
                self._known[identity] = known
        return known

    async def _read(self, identity: str) -> Commit:
        if self._listed is None and self._waited_s > LISTED_AFTER_S:
            self._listed = await self._list()
        if self._listed and (record := self._listed.pop(bytes.fromhex(identity), None)) is not None:
            return Commit.decode(record)
        since = time.monotonic()
        found = await commit(self._store, identity)
        self._waited_s += time.monotonic() - since
        return found

    async def _list(self) -> dict[bytes, bytes]:
        listed: dict[bytes, bytes] = {}
        size = 0
        async with aclosing(self._store.scan(COMMITS)) as entries:
            async for entry in entries:
                listed[entry.key] = entry.value
                size += len(entry.value)
                if size > LISTED_BYTES:
                    break
        return listed


async def root(store: Store, ref: Ref) -> bytes:
    """Return the id of a ref's committed tree. Raises RefNotFound."""
    return bytes.fromhex(ref.root or (await commit(store, ref.commit)).root)


async def newest(store: Store) -> str | None:
    """Return the id of the newest commit, reachable or not."""
    commits = [Commit.decode(entry.value) async for entry in store.scan(COMMITS)]
    return max(((one.generation, one.created_ns, one.id) for one in commits), default=(0, 0, None))[2]


async def resolve(store: Store, expression: str) -> Ref:
    """Resolve a branch (with its staged changes unless `@` follows), tag, id or unique prefix, then `~n` and `^n`.

    Raises RefNotFound, UsageError.
    """
    name = _parsed(expression)[0]
    return await _from_name(store, expression, await _named(store, name))


async def resolve_all(store: Store, expressions: Sequence[str]) -> list[Ref]:
    """Resolve several as `resolve`, together: a name that they share is looked up once."""
    names = list(dict.fromkeys(_parsed(expression)[0] for expression in expressions))
    found = dict(zip(names, await asyncio.gather(*(_named(store, name) for name in names)), strict=True))
    return await asyncio.gather(
        *(_from_name(store, expression, found[_parsed(expression)[0]]) for expression in expressions)
    )


def _parsed(expression: str) -> tuple[str, str, str]:
    """Return the parts of an expression: a name, `@` or `$`, and steps. Raises UsageError."""
    parsed = _EXPRESSION.match(expression)
    if not parsed:
        raise UsageError(
            f"`{expression}` is not a valid ref",
            hint="Give a branch, a tag or a commit, optionally with `@`, `$`, `~2` or `^1`",
        )
    name, mark, steps = parsed.groups()
    return name, mark, steps


async def _from_name(store: Store, expression: str, found: Ref) -> Ref:
    """Return the ref of an expression whose name was found."""
    name, mark, steps = _parsed(expression)
    if mark and found.branch is None:
        raise UsageError(f"`{name}` is not a branch: `{mark}` applies only to branches")
    if mark == "@" or steps:
        if mark == "$" and steps:
            raise UsageError("Staged changes have no ancestors")
        found = Ref(found.commit, found.root)
    reader = CommitReader(store)
    for kind, number in _STEP.findall(steps):
        found = Ref(await _step(reader, found.commit, kind, _count(number), expression))
    return found


async def committed(store: Store, expression: str) -> str:
    """Return the commit to merge, tag or check out. Raises as `resolve`, and UsageError for staged changes."""
    found = await resolve(store, expression)
    if expression.endswith("$"):
        raise UsageError(
            f"`{expression}` includes staged changes, but a commit is required",
            hint=f"Use `{expression[:-1]}` for the committed state; `kvctl repo commit` commits staged changes",
        )
    return found.commit


async def _named(store: Store, name: str) -> Ref:
    if _ID.fullmatch(name):
        with suppress(RefNotFound):
            return Ref(name, (await commit(store, name)).root)
    if found := await store.get(BRANCHES, record_key(name)):
        record = BranchRecord.of(name, found)
        return Ref(record.branch.commit, record.branch.root, record)
    tag = await store.get(TAGS, record_key(name))
    return Ref(tag.value.decode() if tag else await _by_prefix(store, name))


async def _by_prefix(store: Store, text: str) -> str:
    """Return the complete id of a prefix. Raises RefNotFound, UsageError for an ambiguous one."""
    found: list[str] = []
    if re.fullmatch(rf"[0-9a-f]{{{SHORTEST},40}}", text):
        start = bytes.fromhex(text[: len(text) // 2 * 2])
        async with aclosing(store.scan(COMMITS, start, values=False)) as entries:
            async for entry in entries:
                identity = entry.key.hex()
                if identity.startswith(text):
                    found.append(identity)
                elif identity > text:
                    break
                if len(found) > 1:
                    raise UsageError(
                        f"`{text}` is ambiguous: several commits begin with it", hint="Give more characters of the id"
                    )
    if not found:
        raise RefNotFound(
            f"Branch, tag or commit `{text}` does not exist",
            hint="See `kvctl branch ls`, `kvctl tag ls` or `kvctl repo log`",
        )
    return found[0]


async def _step(reader: CommitReader, identity: str, kind: str, number: int, expression: str) -> str:
    if kind == "~":
        for _ in range(number):
            identity = await _parent(reader, identity, 1, expression)
        return identity
    return identity if number == 0 else await _parent(reader, identity, number, expression)


def _count(digits: str) -> int:
    """Return the number of a step; for very many digits, one beyond any history."""
    return int((digits.lstrip("0") or digits[:1] or "1")[:MOST_DIGITS])


async def _parent(reader: CommitReader, identity: str, number: int, expression: str) -> str:
    parents = (await reader.get(identity)).parents
    if number > len(parents):
        raise RefNotFound(
            f"`{expression}` goes beyond the first commit"
            if not parents
            else f"`{identity[:12]}` has no parent {number}"
        )
    return parents[number - 1]
