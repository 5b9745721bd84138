"""`kvctl repo commit`, `status`, `log` and `diff`."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Annotated

from kvctl.cli.app.command import command
from kvctl.cli.app.options import Force, flag, number, option
from kvctl.cli.app.session import Session
from kvctl.cli.bucket import options
from kvctl.cli.records import BRANCH_STATUS, COMMIT, KEY_CHANGE, NEW_COMMIT, STAGED_KEY
from kvctl.cli.repo import commit_graph, views
from kvctl.cli.repo.checkout import FromBucket, live_bucket, record
from kvctl.cli.repo.options import (
    AtBranch,
    AtRef,
    Author,
    Message,
    open_branch,
    open_repository,
    parse_at,
    parse_branch,
    parse_ref,
    ref_argument,
)
from kvctl.cli.repo.views import subject
from kvctl.errors import UsageError
from kvctl.kv import names as kv_names
from kvctl.render import fields
from kvctl.render.escapes import escape, utf8
from kvctl.render.fields import short
from kvctl.render.terminal import paint
from kvctl.render.view import Row, View, age_text
from kvctl.topology.hazards import hazards
from kvctl.units import format_time
from kvctl.versions import model

Names = Mapping[str, Sequence[str]]
"""Commit -> names of its branches and tags, as shown."""


class LogLines:
    """Formatter of commits."""

    def __init__(self, names: Names, *, color: bool, graph: bool) -> None:
        self._names = names
        self._color = color
        self._graph = graph

    async def chunks(self, commits: AsyncIterator[tuple[str, "model.Commit"]]) -> AsyncIterator[bytes]:
        """Yield the lines of each commit, children before parents."""
        graph, first = commit_graph.Graph(), True
        async for _, commit in commits:
            if self._graph:
                drawn = graph.draw(commit.id, commit.parents)
                lines = [f"{drawn.mark} {self._line(commit)}", *drawn.slants]
            else:
                lines = [*([] if first else [""]), *self._block(commit)]
            first = False
            yield utf8("".join(f"{line}\n" for line in lines))

    def _line(self, commit: "model.Commit") -> str:
        who = self._paint(f"{escape(commit.author)}, {age_text(format_time(commit.created_ns))}", "dim")
        return "  ".join(
            filter(None, (self._id(short(commit.id)), escape(subject(commit)), self._named(commit.id), who))
        )

    def _block(self, commit: "model.Commit") -> list[str]:
        time = format_time(commit.created_ns)
        fields = {
            "Merge": " ".join(map(short, commit.parents)) if len(commit.parents) > 1 else "",
            "Author": escape(commit.author),
            "Date": f"{time[:19]}Z ({age_text(time)})",
            "Meta": escape(", ".join(f"{name}={text}" for name, text in commit.meta.items())),
        }
        head = " ".join(filter(None, (self._id(f"commit {commit.id}"), self._named(commit.id))))
        shown = [f"{name + ':':<8}{text}" for name, text in fields.items() if text]
        return [head, *shown, "", *(f"    {escape(line)}" for line in commit.message.splitlines() or [""])]

    def _id(self, text: str) -> str:
        return self._paint(text, "yellow")

    def _named(self, commit: str) -> str:
        names = self._names.get(commit)
        return f"({self._paint(', '.join(names), 'green')})" if names else ""

    def _paint(self, text: str, style: str) -> str:
        return paint(text, style) if self._color else text


def names_of(branches: Mapping[str, str], tags: Mapping[str, str]) -> dict[str, list[str]]:
    """Map commits to the names of their branches and tags: `main`, `tag v1`."""
    found: dict[str, list[str]] = {}
    for name, commit in sorted(branches.items()):
        found.setdefault(commit, []).append(name)
    for name, commit in sorted(tags.items()):
        found.setdefault(commit, []).append(f"tag {name}")
    return found


PENDING = 8
"""Exit code of `diff --exit-code` when there are differences."""

IN_TABLE = 100
"""Number of commits from which a table takes its column widths."""

Meta = Annotated[list[str] | None, option("--meta", "KEY=VALUE", "Metadata of the commit; repeatable")]
FirstParent = Annotated[bool, flag("--first-parent", "Follow only the first parent of merges")]


@command(
    "repo status",
    examples=["kvctl repo status config@main", "kvctl repo status config@main -o json | jq -r '.changes[].key'"],
    see=["repo commit", "repo reset", "repo diff"],
    prints=(STAGED_KEY, BRANCH_STATUS),
)
async def status(session: Session, at: AtBranch) -> None:
    """Show the staged changes of a branch.

    Lists the keys that were written or deleted since the last commit: `+` added, `~` changed, `-` removed. `kvctl repo
    diff` shows values.
    """
    place = parse_branch(at)
    repository = await open_branch(session, place, write=False)
    found = await repository.status(place.ref)
    last = await repository.show(found.commit)
    session.show(views.status_view(session, place.repository, found, last))
    if not found.changes:
        session.note("Nothing is staged")


@command(
    "repo commit",
    examples=[
        "kvctl repo commit config@main -m 'Longer timeouts'",
        "kvctl repo commit config@main -m 'Nightly' --meta ticket=OPS-7 --author ci@example.com",
        "kvctl repo commit config@main -m 'Running configuration' --from services",
    ],
    see=["repo status", "repo log", "repo reset", "repo checkout"],
    prints=(NEW_COMMIT,),
    forces=lambda: (hazards.LAGGING_REPLICA,),
)
async def commit(
    session: Session,
    at: AtBranch,
    message: Message,
    meta: Meta = None,
    allow_empty: Annotated[bool, flag("--allow-empty", "Commit even if nothing is staged")] = False,
    source: FromBucket = None,
    author: Author = None,
    force: Force = None,
) -> None:
    """Commit the staged changes of a branch.

    The commit contains everything written to the branch before the command started; writers do not have to stop. In a
    pipe only the commit's id is printed. If there is nothing to commit, the command exits with 1.

    --from records a live bucket instead, at one snapshot revision, even while it is written to. The branch must not
    have staged changes. Ttls, headers and keys that are not legal in ADR-8 are left out and named. A mirror or an
    aggregate that lacks entries of its origins after five seconds is not recorded without --force lagging-replica.

    The author is --author, KVCTL_AUTHOR, or user and host as in `ann@laptop`.
    """
    place = parse_branch(at)
    if not message.strip():
        raise UsageError("The message must not be empty", hint="Describe the commit with `-m MSG`")
    named = options.parse_pairs(meta or ())
    bucket = await live_bucket(session, source, force)
    repository = await open_branch(session, place, author=author)
    if bucket is None:
        made = await repository.commit(place.ref, message, meta=named, allow_empty=allow_empty)
    else:
        made = await record(session, repository, place.ref, bucket, message, meta=named, allow_empty=allow_empty)
    views.show_made(session, place.ref, made)


@command(
    "repo log",
    examples=[
        "kvctl repo log config@main",
        "kvctl repo log config@main --graph",
        "kvctl repo log config@v1 --key app.port --limit 5 -o ndjson",
    ],
    see=["repo show", "repo annotate", "history"],
    prints=(COMMIT,),
)
async def log(
    session: Session,
    at: AtRef,
    limit: Annotated[int | None, number("--limit", "Maximum number of commits")] = None,
    first_parent: FirstParent = False,
    graph: Annotated[bool, flag("--graph", "Draw the history, one line for each commit")] = False,
    key: Annotated[str | None, option("--key", "KEY", "Show only commits that changed this key")] = None,
) -> None:
    """Show the history of a ref, newest commit first.

    --graph draws the history: `*` is a commit, and lines lead to its parents. With -o, nothing is drawn.

    --key shows the commits in which the key differs from all parents, or was removed.
    """
    place = parse_at(at)
    if key is not None:
        kv_names.check_key(key)
    repository = await open_repository(session, place.repository)
    commits = repository.log(place.ref, first_parent=first_parent, key=key, limit=limit)
    as_text = session.options.output is None and (graph or session.output == "table")
    if not as_text:
        together = IN_TABLE if session.output == "table" else 1
        shown = fields.columns("id author created message")
        view = View(columns=shown, name="id", empty="No commits")
        await session.stream(view, _rows(commits, together))
        return
    names = names_of(await repository.branches(), await repository.tags())
    lines = LogLines(names, color=session.terminal.colored, graph=graph)
    await session.stream_bytes(lines.chunks(commits))


async def _rows(commits: AsyncIterator[tuple[str, "model.Commit"]], together: int) -> AsyncIterator[Sequence[Row]]:
    rows: list[Row] = []
    async for _, found in commits:
        rows.append(views.commit_row(found))
        if len(rows) == together:
            yield rows
            rows = []
    yield rows


@command(
    "repo diff",
    examples=[
        "kvctl repo diff config@main",
        "kvctl repo diff config@v1 main",
        "kvctl repo diff config@main release --three-dot",
        "kvctl repo diff config@v1 main -p > changes.diff",
        "kvctl repo diff config@main --exit-code || echo something is staged",
    ],
    see=["repo status", "repo merge", "bucket diff"],
    prints=(KEY_CHANGE,),
)
async def diff(
    session: Session,
    at: AtRef,
    other: Annotated[str | None, ref_argument("REF", "Ref to compare with [default: the staged changes]")] = None,
    three_dot: Annotated[bool, flag("--three-dot", "Show what REF changed since the merge base")] = False,
    patch: Annotated[bool, flag("--patch -p", "Show changed lines, as on a terminal without -o")] = False,
    stat: Annotated[bool, flag("--stat", "Show a table with the beginning of each value")] = False,
    exit_code: Annotated[bool, flag("--exit-code", "Exit with 8 if there are differences")] = False,
) -> int:
    """Show the differences between two refs.

    A key that only REF has is added (`+`), one that REF lacks is removed (`-`), and one with another value is changed
    (`~`). A branch means its last commit; append `$` to include its staged changes. Without REF, the branch's staged
    changes are shown.

    On a terminal the changed lines of each value are shown, as in `git diff`; -p does that in a pipe, too. --stat shows
    a table of the keys. Binary values are shown by their sizes. With -o every key is a record with both values.

    --three-dot shows what merging REF into the first ref would change: the changes since their merge base, with `*` for
    conflicts.
    """
    place = parse_at(at)
    as_patch = _is_patch(session, patch, stat)
    if other is None and three_dot:
        raise UsageError("`--three-dot` compares two refs", hint=f"Use `kvctl repo diff {place} REF --three-dot`")
    ref = None if other is None else parse_ref(other, place.repository)
    if ref is None and not place.is_name:
        raise UsageError(
            f"Nothing to compare `{place.ref}` with; give a second ref",
            hint=f"Use `kvctl repo diff {place} REF`; only branches have staged changes",
        )
    repository = await open_repository(session, place.repository)
    found = await repository.diff(place.ref, ref, three_dot=three_dot)
    if as_patch and found:
        await views.show_patch(session, repository, found)
    else:
        await views.show_changes(session, repository, found, empty="No differences")
    return PENDING if found and exit_code else 0


def _is_patch(session: Session, patch: bool, stat: bool) -> bool:
    """Return True if the difference is shown as a patch. Raises UsageError for options that cannot be combined."""
    if patch and (stat or session.options.output is not None):
        raise UsageError(f"`--patch` and `{'--stat' if stat else '--output'}` cannot be combined")
    as_rows = stat or session.options.output is not None or session.options.columns
    return patch or (session.output == "table" and not as_rows)
