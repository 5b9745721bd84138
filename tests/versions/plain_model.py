"""Repository as dictionaries: obviously right, and slow. Each operation returns its expected result.

Commits are named as the real repository names them: an operation that makes one is told its id afterwards.
"""

from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Any

Content = Mapping[str, bytes]
Staged = Mapping[str, bytes | None]


@dataclass(frozen=True)
class Made:
    """A commit that an operation should make on a branch."""

    branch: str
    content: Content
    parents: tuple[str, ...]


class Refused(Exception):
    """The operation should raise an error of this name, and change nothing."""


@dataclass
class Model:
    """Contents by commit, and the commits of branches and tags. Nothing is changed in place."""

    commits: dict[str, Content] = field(default_factory=dict)
    parents: dict[str, tuple[str, ...]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    staged: dict[str, Staged] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)

    def copy(self) -> "Model":
        """Return an independent copy."""
        made = copy(self)
        for name, value in vars(self).items():
            setattr(made, name, dict(value))
        return made

    # -- what is seen ------------------------------------------------------------------------------------------

    def committed(self, branch: str) -> Content:
        return self.commits[self.branches[branch]]

    def changes(self, branch: str) -> Staged:
        """Return staged changes that differ from the head."""
        under = self.committed(branch)
        return {key: value for key, value in self.staged[branch].items() if under.get(key) != value}

    def content(self, branch: str) -> Content:
        return _over(self.committed(branch), self.staged[branch])

    def seen(self) -> dict[str, Any]:
        """Return all contents, independent of commit ids."""
        return {
            "branches": {name: (self.committed(name), self.changes(name)) for name in self.branches},
            "tags": {name: self.commits[commit] for name, commit in self.tags.items()},
        }

    def reachable(self) -> set[str]:
        found: set[str] = set()
        waiting = [*self.branches.values(), *self.tags.values()]
        while waiting:
            if (commit := waiting.pop()) not in found:
                found.add(commit)
                waiting += self.parents[commit]
        return found

    def ancestors(self, commit: str) -> set[str]:
        found: set[str] = set()
        waiting = [commit]
        while waiting:
            if (one := waiting.pop()) not in found:
                found.add(one)
                waiting += self.parents[one]
        return found

    def merge_bases(self, one: str, other: str) -> set[str]:
        """Return the common ancestors that are not ancestors of others."""
        return self._best(self.ancestors(one) & self.ancestors(other))

    def merge_base(self, one: str, other: str) -> Content:
        """Return the content of the merge base: of several ones, merged with each other, the oldest first."""
        return self._base({one}, {other}, 1)

    def _base(self, ones: set[str], others: set[str], depth: int) -> Content:
        common = set().union(*map(self.ancestors, ones)) & set().union(*map(self.ancestors, others))
        first, *rest = sorted(self._best(common), key=list(self.commits).index) or [None]
        base = {} if first is None else dict(self.commits[first])
        merged = {first}
        for commit in rest:
            below, theirs = self._base(merged, {commit}, depth + 1), self.commits[commit]
            for key in below.keys() | base.keys() | theirs.keys():
                was, one, other = below.get(key), base.get(key), theirs.get(key)
                conflict = was if None in (one, other) else f"conflict of {one!r} and {other!r} at {depth}".encode()
                _set(base, key, one if other in (was, one) else other if one == was else conflict)
            merged.add(commit)
        return base

    def _best(self, common: set[str]) -> set[str]:
        return common - {older for base in common for older in self.ancestors(base) - {base}}

    # -- staging -----------------------------------------------------------------------------------------------

    def put(self, branch: str, changes: Staged) -> None:
        self.staged[branch] = {**self.staged[branch], **changes}

    def reset(self, branch: str, keys: Iterable[str] | None = None) -> None:
        gone = set(self.staged[branch] if keys is None else keys)
        self.staged[branch] = {key: value for key, value in self.staged[branch].items() if key not in gone}

    # -- commits -----------------------------------------------------------------------------------------------

    def commit(self, branch: str, *, allow_empty: bool = False) -> Made:
        if not self.changes(branch) and not allow_empty:
            raise Refused("NothingToCommit")
        return self._made(branch, self.content(branch))

    def record(self, branch: str, content: Content) -> Made:
        self._clean(branch)
        if dict(content) == dict(self.committed(branch)):
            raise Refused("NothingToCommit")
        return self._made(branch, content)

    def merge(self, dest: str, theirs: str, strategy: str | None, *, squash: bool) -> Made | None:
        self._clean(dest)
        if self.merge_bases(theirs, self.branches[dest]) == {theirs}:
            return None
        base = self.merge_base(self.branches[dest], theirs)
        merged = self._combined(dest, base, self.commits[theirs], strategy)
        if squash and merged == self.committed(dest):
            return None
        return self._made(dest, merged, () if squash else (theirs,))

    def revert(self, branch: str, commit: str) -> Made:
        return self._applied(branch, commit, self.parents[commit][0])

    def pick(self, branch: str, commit: str) -> Made:
        return self._applied(branch, self.parents[commit][0], commit)

    def reset_hard(self, branch: str, commit: str) -> None:
        self._clean(branch)
        self.branches[branch] = commit
        self.staged[branch] = {}

    def adopt(self, made: Made, identity: str) -> None:
        """Record the id of a created commit."""
        self.commits[identity], self.parents[identity] = made.content, made.parents
        self.branches[made.branch], self.staged[made.branch] = identity, {}

    # -- refs --------------------------------------------------------------------------------------------------

    def create_branch(self, name: str, commit: str) -> None:
        self._free(name, (self.branches, commit))
        if name not in self.branches:
            self.branches[name], self.staged[name] = commit, {}

    def create_tag(self, name: str, commit: str) -> None:
        self._free(name, (self.tags, commit))
        self.tags[name] = commit

    def delete_branch(self, name: str) -> None:
        del self.branches[name], self.staged[name]

    def delete_tag(self, name: str) -> None:
        if name not in self.tags:
            raise Refused("RefNotFound")
        del self.tags[name]

    def collect(self) -> None:
        left = self.reachable()
        self.commits = {commit: content for commit, content in self.commits.items() if commit in left}

    # -- inside ------------------------------------------------------------------------------------------------

    def _made(self, branch: str, content: Content, others: tuple[str, ...] = ()) -> Made:
        return Made(branch, dict(content), (self.branches[branch], *others))

    def _clean(self, branch: str) -> None:
        if self.changes(branch):
            raise Refused("HasStagedChanges")

    def _free(self, name: str, equal: tuple[dict[str, str], str]) -> None:
        """Check that only an equal branch or tag has the name."""
        if (name in self.branches or name in self.tags) and equal[0].get(name) != equal[1]:
            raise Refused("RefExists")

    def _applied(self, branch: str, before: str, after: str) -> Made:
        self._clean(branch)
        merged = self._combined(branch, self.commits[before], self.commits[after], None)
        if merged == self.committed(branch):
            raise Refused("NothingToCommit")
        return self._made(branch, merged)

    def _combined(self, branch: str, was: Content, theirs: Content, strategy: str | None) -> Content:
        """Return the branch's content with the changes from one content to another."""
        ours = self.committed(branch)
        merged = dict(ours)
        for key in was.keys() | theirs.keys():
            if theirs.get(key) == was.get(key) or ours.get(key) == theirs.get(key):
                continue
            if ours.get(key) != was.get(key):
                if strategy is None:
                    raise Refused("MergeConflict")
                if strategy == "dest-wins":
                    continue
            _set(merged, key, theirs.get(key))
        return merged


def _over(content: Content, changes: Staged) -> dict[str, bytes]:
    merged = dict(content)
    for key, value in changes.items():
        _set(merged, key, value)
    return merged


def _set(content: dict[str, bytes], key: str, value: bytes | None) -> None:
    if value is None:
        content.pop(key, None)
    else:
        content[key] = value
