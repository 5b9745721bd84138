"""A bucket as a list of every operation ever, and what a bucket holds of them."""

from collections import defaultdict
from dataclasses import dataclass, field

KEYS = ["a", "b", "a.1", "a.2", "a.b.c", "b.1", "x-y/z", "_q=1"]
FILTERS = ["a", "a.*", "a.>", "*", "*.1", ">", "b.1"]


@dataclass(frozen=True)
class Operation:
    """One entry that was stored."""

    revision: int
    key: str
    kind: str
    value: bytes


@dataclass
class Model:
    """Every operation ever, and what a bucket holds of them."""

    history: int
    log: list[Operation] = field(default_factory=list)
    removed: set[int] = field(default_factory=set)
    """Revisions that compaction removed."""

    def add(self, revision: int, key: str, kind: str, value: bytes = b"") -> None:
        assert revision == self.last + 1, f"revision {revision} after {self.last}"
        self.log.append(Operation(revision, key, kind, value))

    @property
    def last(self) -> int:
        return self.log[-1].revision if self.log else 0

    def held(self) -> list[Operation]:
        """What the bucket holds, oldest first."""
        held: dict[str, list[Operation]] = defaultdict(list)
        for one in self.log:
            before = [] if one.kind == "PURGE" else held[one.key]
            held[one.key] = [*before, one][-self.history :]
        left = [one for ones in held.values() for one in ones if one.revision not in self.removed]
        return sorted(left, key=lambda one: one.revision)

    def latest(self) -> dict[str, Operation]:
        """The last entry of each key."""
        return {one.key: one for one in self.held()}

    def living(self) -> dict[str, bytes]:
        return {key: one.value for key, one in self.latest().items() if one.kind == "PUT"}

    def at(self, revision: int) -> dict[str, bytes]:
        """What lived right after a revision, but for what has been compacted since."""
        last = {one.key: one for one in self.log if one.revision <= revision}
        return {key: one.value for key, one in last.items() if one.kind == "PUT" and not self._compacted(one)}

    def lost(self, revision: int) -> set[str]:
        """The keys of which the bucket cannot tell what they were at a revision."""
        held: dict[str, list[Operation]] = defaultdict(list)
        for one in self.held():
            held[one.key].append(one)
        return {
            key
            for key, ones in held.items()
            if ones[0].revision > revision and (len(ones) == self.history or ones[0].kind == "PURGE")
        }

    def unexplained(self, revision: int) -> int:
        """The last revision up to this one that is not held, if no key that may have lost entries begins later; or 0.

        Compaction removed it, and nothing in the stream shows if it was a value or a deletion.
        """
        ones: dict[str, list[Operation]] = defaultdict(list)
        for one in self.held():
            ones[one.key].append(one)
        held = {one.revision for own in ones.values() for one in own}
        full = (own[0] for own in ones.values() if len(own) == self.history or own[0].kind == "PURGE")
        missing = max((number for number in range(1, revision + 1) if number not in held), default=0)
        return missing if missing > max((one.revision for one in full), default=0) else 0

    def compact(self) -> int:
        """Remove what is left of the keys that do not live; how many."""
        gone = {key for key, one in self.latest().items() if one.kind != "PUT"}
        self.removed |= {one.revision for one in self.log if one.key in gone}
        return len(gone)

    def _compacted(self, one: Operation) -> bool:
        """Whether compaction has removed the entry, or would have, had it not been evicted before."""
        return any(
            other.key == one.key and other.revision >= one.revision and other.revision in self.removed
            for other in self.log
        )


def matching(keys: list[str], text: str) -> list[str]:
    """The keys that a filter matches, token by token."""

    def matches(key: str) -> bool:
        tokens, wanted = key.split("."), text.split(".")
        if wanted[-1] == ">":
            return len(tokens) >= len(wanted) and all(w in ("*", t) for w, t in zip(wanted[:-1], tokens, strict=False))
        return len(tokens) == len(wanted) and all(w in ("*", t) for w, t in zip(wanted, tokens, strict=True))

    return [key for key in keys if matches(key)]
