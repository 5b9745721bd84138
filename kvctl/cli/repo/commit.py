"""What is staged, commits, history, differences."""

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from kvctl.cli.app.command import command, group
from kvctl.cli.app.session import Session
from kvctl.cli.keys.arguments import number
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
from kvctl.errors import UsageError
from kvctl.render.view import Row, View

if TYPE_CHECKING:
    from kvctl.versions.model import Commit

app = group()

PENDING = 8
"""Exit code of `diff --exit-code` where something differs."""

IN_TABLE = 100
"""Commits that are shown at once in a table: its columns are as wide as the first of them want."""

Meta = Annotated[list[str] | None, typer.Option("--meta", metavar="KEY=VALUE", help="Kept with the commit; repeatable")]
FirstParent = Annotated[
    bool, typer.Option("--first-parent", help="Only the line of the branch itself, not what was merged into it")
]


@command(
    app,
    "status",
    examples=["kvctl repo status config@main", "kvctl repo status config@main -o json | jq -r '.changes[].key'"],
    see=["repo commit", "repo reset", "repo diff"],
)
async def status(session: Session, at: AtBranch) -> None:
    """Show what is staged on a branch.

    Keys that were written or deleted since the last commit: `+` added, `~` changed, `-` removed. `kvctl repo diff`
    shows values.
    """
    from kvctl.cli.repo.views import status_view

    place = parse_branch(at)
    repository = await open_branch(session, place, write=False)
    found = await repository.status(place.ref, values=False)
    last = await repository.show(found.commit)
    session.show(status_view(session, place.repository, found, last))
    if not found.changes:
        session.note("Nothing is staged")


@command(
    app,
    "commit",
    examples=[
        "kvctl repo commit config@main -m 'Longer timeouts'",
        "kvctl repo commit config@main -m 'Nightly' --meta ticket=OPS-7 --author ci@example.com",
        "kvctl repo commit config@main -m 'As it runs' --from services",
    ],
    see=["repo status", "repo log", "repo reset", "repo checkout"],
)
async def commit(
    session: Session,
    at: AtBranch,
    message: Message,
    meta: Meta = None,
    allow_empty: Annotated[bool, typer.Option("--allow-empty", help="Also if nothing is staged")] = False,
    source: FromBucket = None,
    author: Author = None,
) -> None:
    """Record what is staged on a branch.

    Everything written to the branch before the command began is in the commit, and nobody has to stop writing for it.
    Prints the commit's id, in a pipe that alone. Where there is nothing to record, the command exits 1.

    --from records what a live bucket holds instead, all of it and nothing else, as it was at one revision, also while
    it is written to. Nothing may be staged then. Ttls and headers are left out, and so are keys that ADR-8 does not
    allow: the command names them.

    The author is --author, what KVCTL_AUTHOR holds, or user and host as in `ann@laptop`.
    """
    from kvctl.cli.bucket.options import parse_metadata
    from kvctl.cli.repo.views import show_made

    place = parse_branch(at)
    if not message.strip():
        raise UsageError("The message is empty", hint="`-m` says what the commit is about")
    named = parse_metadata(meta or ())
    bucket = await live_bucket(session, source)
    repository = await open_branch(session, place, author=author)
    if bucket is None:
        made = await repository.commit(place.ref, message, meta=named, allow_empty=allow_empty)
    else:
        made = await record(session, repository, place.ref, bucket, message, meta=named, allow_empty=allow_empty)
    show_made(session, place.ref, made)


@command(
    app,
    "log",
    examples=[
        "kvctl repo log config@main",
        "kvctl repo log config@main --graph",
        "kvctl repo log config@v1 --key app.port --limit 5 -o ndjson",
    ],
    see=["repo show", "repo annotate", "history"],
)
async def log(
    session: Session,
    at: AtRef,
    limit: Annotated[int | None, number("--limit", help="Only the newest so many")] = None,
    first_parent: FirstParent = False,
    graph: Annotated[
        bool, typer.Option("--graph", help="A line for each commit, beside a drawing of the history")
    ] = False,
    key: Annotated[str | None, typer.Option("--key", metavar="KEY", help="Only commits that touched this key")] = None,
) -> None:
    """Show the commits that a ref comes from, the newest first.

    --graph draws them: `*` is a commit, lines lead to its parents. It is text for people; with -o, the format asked
    for has no drawing.

    --key shows the commits after which the key had another value than in any of their parents, or was gone.
    """
    from kvctl.cli.repo.log_lines import LogLines, names_of
    from kvctl.cli.repo.views import COMMITS

    place = parse_at(at)
    if key is not None:
        from kvctl.kv.names import check_key

        check_key(key)
    repository = await open_repository(session, place.repository)
    commits = repository.log(place.ref, first_parent=first_parent, key=key, limit=limit)
    as_text = session.options.output is None and (graph or session.output == "table")
    if not as_text:
        together = IN_TABLE if session.output == "table" else 1
        await session.stream(View(columns=COMMITS, name="id", empty="No commits"), _rows(commits, together))
        return
    names = names_of(await repository.branches(), await repository.tags())
    lines = LogLines(names, color=session.terminal.colored, graph=graph)
    await session.stream_bytes(lines.chunks(commits))


async def _rows(commits: AsyncIterator[tuple[str, "Commit"]], together: int) -> AsyncIterator[Sequence[Row]]:
    from kvctl.cli.repo.views import commit_row

    rows: list[Row] = []
    async for _, found in commits:
        rows.append(commit_row(found))
        if len(rows) == together:
            yield rows
            rows = []
    yield rows


@command(
    app,
    "diff",
    examples=[
        "kvctl repo diff config@main",
        "kvctl repo diff config@v1 main",
        "kvctl repo diff config@main release --three-dot",
        "kvctl repo diff config@main --exit-code || echo something is staged",
    ],
    see=["repo status", "repo merge", "bucket diff"],
)
async def diff(
    session: Session,
    at: AtRef,
    other: Annotated[str | None, ref_argument("REF", "What to compare with; without it, what is staged")] = None,
    three_dot: Annotated[
        bool, typer.Option("--three-dot", help="What REF changed since both had a commit in common")
    ] = False,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit 8 where something differs")] = False,
) -> int:
    """Show what differs between two refs.

    What REF has that the first has not is added (`+`), what it lacks is removed (`-`), other values are changed (`~`).
    Both are taken as committed; `$` after a branch takes its staged changes along. Without REF, what is staged on the
    branch is compared with what is committed.

    --three-dot shows what merging REF into the first would bring: its changes since their common commit, with `*` for
    those that are in conflict with the other side.
    """
    from kvctl.cli.repo.views import show_changes

    place = parse_at(at)
    if other is None and three_dot:
        raise UsageError("`--three-dot` compares two refs", hint=f"As in `kvctl repo diff {place} REF --three-dot`")
    ref = None if other is None else parse_ref(other, place.repository)
    if ref is None and not place.is_name:
        raise UsageError(
            f"What is to be compared with `{place.ref}` is missing",
            hint=f"Only a branch has something staged to compare with: `kvctl repo diff {place} REF`",
        )
    repository = await open_repository(session, place.repository)
    found = await repository.diff(place.ref, ref, three_dot=three_dot, values=False)
    await show_changes(session, repository, found, empty="No differences")
    return PENDING if found and exit_code else 0
