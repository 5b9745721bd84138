"""Merges of random histories beside git's: `pytest -m git --seed N --steps HISTORIES`, not in the default run.

Each commit of a repository has its twin in git: a file for each key, with the value as its only line. So git
has nothing to merge inside files. Values name their key, so that it finds no renames either (2.39 ignores the setting).
"""

import hashlib
import random
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from itertools import permutations
from pathlib import Path
from typing import NamedTuple

import pytest

import kvctl
from kvctl.versions.commits import NothingToCommit
from kvctl.versions.merges import MergeConflict
from kvctl.versions.model import Commit
from kvctl.versions.repository import Repository
from kvctl.versions.tree.tree import Strategy
from tests.versions.repos import held
from tests.versions.test_recursive_merge import CONFLICT, CROSSED, begun, crossed

pytestmark = [pytest.mark.git, pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")]

HISTORIES = 200
"""Number of histories without `--steps`."""
TOGETHER = 20
"""Number of histories whose merges git repeats in one process."""
GIT = ("git", "-c", "merge.renames=false", "-c", "merge.directoryRenames=false", "-c", "core.fsync=none")
AUTHOR = ("-c", "user.name=o", "-c", "user.email=o")
BRANCHES = ("main", "x", "y", "z")
Content = Mapping[str, bytes]
Answer = Mapping[str, str] | frozenset[str]
"""The blobs of the files after a merge, or the paths in conflict."""


class Merged(NamedTuple):
    """A merge that kvctl answered, of two commits."""

    seed: int
    dest: str
    source: str
    bases: frozenset[str]
    answer: Answer


class Git:
    """A repository with the twins of commits, by the ids that kvctl gave them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stream: list[bytes] = []
        self._marks: dict[str, int] = {}
        self._names: dict[str, str] = {}
        folder.mkdir()
        self._run("init", "--quiet")

    def add(self, identity: str, parents: Sequence[str], content: Content) -> None:
        """Add a commit after its parents; dates rise as commits are added, by whole seconds."""
        mark = self._marks[identity] = len(self._marks) + 1
        links = "".join(f"{'merge' if at else 'from'} :{self._marks[one]}\n" for at, one in enumerate(parents))
        head = f"commit refs/heads/all\nmark :{mark}\ncommitter o <o> {10**9 + mark} +0000\ndata 0\n"
        self._stream.append(f"reset refs/heads/all\n\n{head}{links}deleteall\n".encode())
        for key, value in content.items():
            self._stream.append(b"M 644 inline %s\ndata %d\n%s\n\n" % (key.encode(), len(value) + 1, value))

    def flush(self) -> None:
        """Store the commits that were added."""
        marks = self._folder / "marks"
        self._run("fast-import", "--quiet", "--force", f"--export-marks={marks}", stdin=b"".join(self._stream))
        names = dict(line[1:].split() for line in marks.read_text().splitlines())
        self._names = {identity: names[str(mark)] for identity, mark in self._marks.items()}

    def answers(self, merges: Sequence[Merged]) -> list[Answer]:
        """Merge again, with the machinery of `git merge`."""
        asked = "".join(f"{self._names[one.dest]} {self._names[one.source]}\n" for one in merges)
        parts = iter(
            self._run("merge-tree", "--stdin", "--name-only", "--no-messages", stdin=asked.encode()).split(b"\0")
        )
        found = [(next(parts), next(parts).decode(), [*iter(parts.__next__, b"")]) for _ in merges]
        contents = iter(self._contents([tree for clean, tree, _ in found if clean == b"1"]))
        return [next(contents) if clean == b"1" else frozenset(map(bytes.decode, paths)) for clean, _, paths in found]

    def merge(self, one: Merged) -> Answer:
        """Merge with `git merge` itself, in a work tree."""
        self._run("checkout", "--quiet", "--force", "--detach", self._names[one.dest])
        self._run(*AUTHOR, "merge", "--quiet", "--no-edit", self._names[one.source], codes=(0, 1))
        left = self._run("diff", "--name-only", "--diff-filter=U", "-z").split(b"\0")[:-1]
        return frozenset(map(bytes.decode, left)) if left else self._contents(["HEAD^{tree}"])[0]

    def bases(self, one: Merged) -> frozenset[str]:
        """Return all merge bases."""
        twins = {name: identity for identity, name in self._names.items()}
        found = self._run("merge-base", "--all", self._names[one.dest], self._names[one.source], codes=(0, 1))
        return frozenset(twins[name] for name in found.decode().split())

    def explained(self, one: Merged) -> str:
        """Return what the sides and all their bases hold."""
        commits = [one.dest, one.source, *self.bases(one)]
        contents = self._contents([f"{self._names[commit]}^{{tree}}" for commit in commits])
        return "\n".join(f"{commit[:8]}: {content}" for commit, content in zip(commits, contents, strict=True))

    def _contents(self, trees: Sequence[str]) -> list[Answer]:
        found = self._run("cat-file", "--batch", stdin="".join(f"{tree}\n" for tree in trees).encode())
        contents: list[Answer] = []
        for _ in trees:
            head, _, found = found.partition(b"\n")
            size = int(head.split()[2])
            files = re.findall(rb"\d+ ([^\0]+)\0(.{20})", found[:size], re.DOTALL)
            contents.append({name.decode(): blob.hex() for name, blob in files})
            found = found[size + 1 :]
        return contents

    def _run(self, *arguments: str, stdin: bytes = b"", codes: Sequence[int] = (0,)) -> bytes:
        done = subprocess.run((*GIT, *arguments), cwd=self._folder, input=stdin, capture_output=True, timeout=60)
        assert done.returncode in codes, done.stderr
        return done.stdout


class History:
    """A random history in a repository, its twins in git, and all merges that were tried."""

    def __init__(self, seed: int, repo: Repository, git: Git) -> None:
        self._seed = seed
        self._dice = random.Random(seed)
        self._repo = repo
        self._git = git
        self._heads: dict[str, str] = {}
        self._all: list[str] = []
        self._keys = [f"k{number}" for number in range(self._dice.choice([1, 3, 6]))]
        self._values = range(self._dice.choice([2, 4, 50]))
        self.merges: list[Merged] = []

    async def run(self) -> None:
        """Make the history: changes, merges of heads and of older commits, and pairs of merges that cross."""
        await self._adopt("main", await self._repo.show("main"))
        await self._change("main", self._keys)
        for branch in BRANCHES[1 : self._dice.randrange(2, 5)]:
            await self._repo.create_branch(branch)
            self._heads[branch] = self._heads["main"]
        for _ in range(self._dice.choice([3, 6, 10])):
            step = self._dice.random()
            one, other = self._dice.sample(sorted(self._heads), 2)
            if step < 0.2:
                await self._change(one)
            elif step < 0.3:
                await self._merge(one, self._dice.choice(self._all))
            elif step < 0.4:
                await self._merge(one, self._heads[other])
            else:
                await self._cross(self._dice.sample(sorted(self._heads), self._dice.randint(2, len(self._heads))))
        for one, other in permutations(self._heads, 2):
            await self._try(one, self._heads[other])

    async def _cross(self, branches: Sequence[str]) -> None:
        """Merge what each branch has now into some of the others."""
        for one in branches:
            if self._dice.random() < 0.7:
                await self._change(one)
        heads = dict(self._heads)
        for one, other in self._dice.sample([*permutations(branches, 2)], len(branches) * (len(branches) - 1)):
            if len(branches) == 2 or self._dice.random() < 0.7:
                await self._merge(one, heads[other])

    async def _change(self, branch: str, some: Sequence[str] = ()) -> None:
        """Give some keys any value, or remove them."""
        keys = some or self._dice.sample(self._keys, self._dice.randint(1, len(self._keys)))
        changes = {
            key: None if self._dice.random() < 0.3 else f"{key} {self._dice.choice(self._values)}".encode()
            for key in keys
        }
        await self._repo.put_many(branch, changes)
        try:
            await self._adopt(branch, await self._repo.commit(branch, "m"))
        except NothingToCommit:
            await self._repo.reset(branch)

    async def _merge(self, branch: str, source: str) -> None:
        """Merge; where there are conflicts, a side wins, or each of the keys is given any value."""
        await self._try(branch, source)
        strategy = self._dice.choice([Strategy.SOURCE_WINS, Strategy.DEST_WINS])
        made = await self._repo.merge(source, branch, strategy=strategy)
        if made.commit is not None:
            await self._adopt(branch, made.commit)
            if isinstance(self.merges[-1].answer, frozenset) and self._dice.random() < 0.3:
                await self._change(branch, sorted(self.merges[-1].answer))

    async def _try(self, branch: str, source: str) -> None:
        answer: Answer
        try:
            planned = await self._repo.merge(source, branch, dry_run=True)
        except MergeConflict as error:
            answer = frozenset(one.key for one in error.conflicts)
        else:
            content = {**await held(self._repo, self._heads[branch])}
            for one in planned.changes:
                assert content.pop(one.key, None) == one.before
                if isinstance(one.after, bytes):
                    content[one.key] = one.after
            answer = {key: blob(value) for key, value in content.items()}
        bases = frozenset(await self._repo.merge_bases(source, self._heads[branch]))
        self.merges.append(Merged(self._seed, self._heads[branch], source, bases, answer))

    async def _adopt(self, branch: str, commit: Commit) -> None:
        self._heads[branch] = commit.id
        self._all.append(commit.id)
        self._git.add(commit.id, commit.parents, await held(self._repo, commit.id))


@pytest.mark.parametrize(("was", "one", "other", "kept", "taken", "result"), CROSSED)
async def test_git_answers_as_the_table_of_crossing_histories_does(tmp_path, was, one, other, kept, taken, result):
    repo, git = await begun(), Git(tmp_path / "git")
    await crossed(repo, was, one, other, kept, taken)
    commits = {identity: made for branch in ("main", "side") async for identity, made in repo.log(branch)}
    for identity, made in sorted(commits.items(), key=lambda item: item[1].created_ns):
        git.add(identity, made.parents, await held(repo, identity))
    git.flush()
    heads = [(await repo.show(branch)).id for branch in ("main", "side")]
    answer = git.merge(Merged(0, *heads, frozenset(), {}))
    assert isinstance(answer, frozenset) == (result is CONFLICT)
    if isinstance(answer, dict):
        assert answer.get("port") == (None if result is None else blob(result.encode()))


def blob(value: bytes) -> str:
    """Return git's id of a file with a value as its only line."""
    return hashlib.sha1(b"blob %d\0%s\n" % (len(value) + 1, value)).hexdigest()


@pytest.mark.guarantee("versions-25", by="oracle")
async def test_merges_of_crossing_histories_equal_those_of_git(client, unique, tmp_path, seed, steps):
    """Both agree on the content, or on the keys in conflict; some merges are repeated by `git merge` itself."""
    count = steps(HISTORIES)
    seeds = range(seed * 1_000_000, seed * 1_000_000 + count)
    repositories = kvctl.Repositories(client)
    several = conflicts = total = 0
    for start in range(0, count, TOGETHER):
        git = Git(tmp_path / str(start))
        merges: list[Merged] = []
        for one in seeds[start : start + TOGETHER]:
            name = unique("G")
            history = History(one, await repositories.create(name, storage="memory"), git)
            await history.run()
            await repositories.delete(name)
            merges += history.merges
        git.flush()
        for merged, answer in zip(merges, git.answers(merges), strict=True):
            assert merged.answer == answer, f"{merged}\n{answer}\n{git.explained(merged)}"
            several += len(merged.bases) > 1
            conflicts += isinstance(answer, frozenset)
        total += len(merges)
        chosen = random.Random(start).choice([one for one in merges if len(one.bases) > 1])
        assert git.merge(chosen) == chosen.answer, chosen
        assert git.bases(chosen) == chosen.bases, chosen
        shutil.rmtree(tmp_path / str(start))
    print(f"{count} histories, {total} merges, {several} with several bases, {conflicts} with conflicts")
    assert several > total / 10
