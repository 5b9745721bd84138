"""Views of commits, branches and differences, patches included."""

import asyncio
import difflib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import kvctl
from kvctl.cli import records
from kvctl.cli.app.session import Session
from kvctl.cli.facts import of_stream, row_of
from kvctl.cli.records import BRANCH_STATUS, NEW_COMMIT, REPOSITORY, REPOSITORY_ROW
from kvctl.errors import NotFoundError
from kvctl.kv import stream_kind
from kvctl.phrases import counted
from kvctl.render.escapes import escape, text_of
from kvctl.render.fields import columns, first_line, number_text, short, stored, title_line
from kvctl.render.terminal import paint
from kvctl.render.view import Column, Line, Row, View, document, moment_text
from kvctl.units import format_size, format_time
from kvctl.versions import catalog, model, ref_diff


def subject(commit: "model.Commit") -> str:
    """Return the first line of a commit's message."""
    return first_line(commit.message)


COMMIT = columns(
    "id message author created parents meta",
    id=Column("id", "commit", style="yellow"),
    message=Column("message", ""),
    created=Column("created", text=moment_text),
    parents=Column("parents", text=lambda parents: ", ".join(map(short, parents))),
    meta=Column("meta", text=lambda meta: ", ".join(f"{name}={text}" for name, text in meta.items())),
)
"""Columns of one commit."""


def commit_row(commit: "model.Commit") -> dict[str, Any]:
    """Return a commit as a JSON object."""
    created = format_time(commit.created_ns)
    return row_of(records.COMMIT, commit, parents=list(commit.parents), created=created, meta=dict(commit.meta))


def show_made(session: Session, branch: str, commit: "model.Commit") -> None:
    """Print a new commit: only its id in a pipe, `[main 1a2b3c] message` on a terminal."""
    if session.output != "table":
        show_commit(session, commit)
        return
    mark = f"[{branch} {short(commit.id)}]"
    if session.terminal.colored:
        mark = paint(mark, "yellow")
    session.write(f"{mark} {escape(subject(commit))}\n".encode())


def show_commit(session: Session, commit: "model.Commit") -> None:
    """Print a commit; only its id in a pipe."""
    session.show(commit_document(commit, NEW_COMMIT.columns))


def commit_document(commit: "model.Commit", tsv: Sequence[str]) -> View:
    """Build the card of a commit."""
    groups = (COMMIT[1:2], COMMIT[2:])
    return document(commit_row(commit), *COMMIT, tsv=tsv, name="id", title=_commit_title, groups=groups)


def _commit_title(row: Row) -> Line:
    return [("commit ", "dim"), (row["id"], "yellow")]


def ref_document(row: Row, kind: str, tsv: Sequence[str]) -> View:
    """Build the card of a branch or a tag; `last` in its row is the commit."""
    staged = f"{counted(row['staged'], 'key')} staged" if row.get("staged") else None
    message, *others = map(_of_last, COMMIT[1:])
    return document(
        row,
        *map(Column, row),
        tsv=tsv,
        title=lambda row: title_line(row["name"], f"{kind} of {row['repository']}", staged),
        groups=((Column("commit", "commit", style="yellow"),), (message,), others),
    )


def _of_last(column: Column) -> Column:
    """Return the column of a branch or tag that shows this one of its commit."""

    def text(last: Row) -> str:
        value = last[column.key]
        return (column.text or str)(value) if value else ""

    return Column("last", column.heading, text=text)


def repository_row(found: "catalog.ExistingRepository") -> dict[str, Any]:
    """Return a repository as a JSON object, from its stream."""
    return row_of(REPOSITORY_ROW, of_stream(found.info), name=found.config.name)


def repository_document(
    found: "catalog.ExistingRepository",
    branches: Mapping[str, str],
    tags: Mapping[str, str],
    details: Sequence[Row] | None = None,
) -> View:
    """Build the view of one repository, with branches and tags; `details` are rows of branches with what is staged."""
    facts = of_stream(found.info)
    row = row_of(
        REPOSITORY,
        facts,
        name=found.config.name,
        records=facts["messages"],
        metadata=stream_kind.own_metadata(facts["config"]),
        branches=named_rows(branches),
        tags=named_rows(tags),
    )
    listed = View(columns=NAMED, rows=row["branches"]) if details is None else View(columns=BRANCHES, rows=details)
    sections = [("Branches", listed), ("Tags", View(columns=NAMED, rows=row["tags"]))]
    shown = columns("name stream replicas storage bytes created description compressed metadata")
    return document(
        row,
        *shown,
        tsv=REPOSITORY.columns,
        title=lambda row: title_line(row["name"], "repository"),
        groups=(*_GROUPS, (stored(row["replicas"], row["storage"]), *_KEPT)),
        sections=sections,
    )


_GROUPS = (
    columns("description", description=""),
    columns("bytes records created", bytes="stored", records=Column("records", text=number_text)),
)
_KEPT = columns("compressed stream metadata", compressed=Column("compressed", "", text=lambda yes: "compressed" * yes))


NAMED = columns("name commit", name=Column("name", style="green"))


def named_rows(refs: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return a row for each branch or tag, with its commit."""
    return [{"name": name, "commit": commit} for name, commit in sorted(refs.items())]


async def branch_rows(repository: "kvctl.Repository", branches: Iterable[str]) -> list[Row]:
    """Return the rows of branches with their commits and the number of staged changes, without those deleted since."""

    async def row(branch: str) -> Row | None:
        try:
            status = await repository.status(branch)
        except NotFoundError:
            return None
        return ref_row(branch, await repository.show(status.commit), {"staged": len(status.changes)})

    rows: list[Row] = []
    names = sorted(branches)
    for start in range(0, len(names), CONCURRENT_BRANCHES):
        found = await asyncio.gather(*map(row, names[start : start + CONCURRENT_BRANCHES]))
        rows += [item for item in found if item is not None]
    return rows


CONCURRENT_BRANCHES = 16
"""Number of branches that are read at the same time."""
_REF = Column("name", style="green")
BRANCHES = columns("name commit staged created message", name=_REF)
TAGS = columns("name commit created message", name=_REF)


def ref_row(name: str, commit: "model.Commit", more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return a branch or tag with its commit as a JSON object, `more` between id and time."""
    row = {"name": name, "commit": commit.id, **(more or {})}
    return row | {"created": format_time(commit.created_ns), "message": commit.message}


# -- differences -------------------------------------------------------------------------------------------


async def show_changes(
    session: Session, repository: "kvctl.Repository", changes: Iterable["ref_diff.KeyChange"], *, empty: str
) -> None:
    """Print keys that differ: a sign and both values in a table, objects in JSON.

    Values are read while rows are printed. A table is printed at the end, with the first characters of each value.
    """
    shown = _value_of(session)

    async def rows() -> AsyncIterator[list[Row]]:
        async for some in repository.resolved(changes):
            yield [
                {"change": str(one.kind), "key": one.key, "before": shown(one.before), "after": shown(one.after)}
                for one in some
            ]

    await _show_rows(session, View(columns=_CHANGES, name="key", empty=empty), rows())


async def show_patch(session: Session, repository: "kvctl.Repository", changes: Iterable["ref_diff.KeyChange"]) -> None:
    """Print keys that differ as a patch, with colours on a terminal."""
    escaped, colored = session.terminal.is_terminal, session.terminal.colored

    def shown(text: str, style: str) -> str:
        text = escape(text, keep="\n\t") if escaped else text
        return paint(text, style) if colored and style else text

    async def chunks() -> AsyncIterator[bytes]:
        async for some in repository.resolved(changes):
            lines = [
                shown(text, style)
                for one in some
                for text, style in patch_lines(one.key, _bytes(one.before), _bytes(one.after), conflict=one.is_conflict)
            ]
            yield "".join(f"{line}\n" for line in lines).encode()

    await session.stream_bytes(chunks())


def _bytes(value: "ref_diff.Value") -> bytes | None:
    return value if isinstance(value, bytes) else None


async def show_conflicts(
    session: Session, repository: "kvctl.Repository", conflicts: Iterable["ref_diff.KeyConflict"]
) -> None:
    """Print keys that both sides changed, with the three values."""
    shown, sides = _value_of(session), ("base", "source", "dest")

    async def rows() -> AsyncIterator[list[Row]]:
        for one in conflicts:
            pairs = [
                ref_diff.KeyChange(one.key, one.base, one.source, ref_diff.ChangeKind.CONFLICT),
                ref_diff.KeyChange(one.key, None, one.dest, ref_diff.ChangeKind.CONFLICT),
            ]
            first, second = [change async for some in repository.resolved(pairs) for change in some]
            values = zip(sides, (first.before, first.after, second.after), strict=True)
            yield [{"change": "conflict", "key": one.key} | {side: shown(value) for side, value in values}]

    shown_sides = (Column(side, flex=True) for side in sides)
    await _show_rows(session, View(columns=[*columns("change key"), *shown_sides], name="key"), rows())


async def _show_rows(session: Session, view: View, batches: AsyncIterator[list[Row]]) -> None:
    """Print one table sized to its rows, with values cut to `SEEN`; in other formats, rows as they come."""
    if session.output != "table":
        await session.stream(view, batches)
        return
    rows = [
        {name: value[:SEEN] if isinstance(value, str) and name != "key" else value for name, value in row.items()}
        async for batch in batches
        for row in batch
    ]
    session.show(view._replace(rows=rows))


SEEN = 4096
"""Maximum number of characters of a value in a table."""


_CHANGES = columns(
    "change key before after",
    before=Column("before", flex=True, style="red"),
    after=Column("after", flex=True, style="green"),
)


def status_view(session: Session, repository: str, status: "ref_diff.Status", last: "model.Commit") -> View:
    """Build the view of staged changes: a row for each key, or a document."""
    changes = [{"change": str(one.kind), "key": one.key} for one in status.changes]
    staged = View(columns=columns("change key"), rows=changes, name="key")
    if session.output in ("tsv", "name", "ndjson"):
        return staged
    row = {"repository": repository, "branch": status.branch, "commit": status.commit, "changes": changes}
    count = f"{counted(len(changes), 'key')} staged" if changes else "nothing staged"
    return document(
        row,
        *map(Column, row),
        tsv=BRANCH_STATUS.columns,
        name="branch",
        title=lambda row: title_line(row["branch"], f"branch of {repository}", count),
        groups=[[Column("commit", text=lambda commit: f"{short(commit)}  {subject(last)}", style="yellow")]],
        sections=[("Staged changes", staged)],
    )


def _value_of(session: Session) -> Callable[["ref_diff.Value"], Any]:
    """Choose how the output format shows a value, in tables as text or `base64:...`; None stands for a missing key."""

    def shown(value: "ref_diff.Value") -> Any:
        if not isinstance(value, bytes):
            return None
        text, encoding = text_of(value)
        if session.output in ("json", "ndjson", "yaml"):
            return {"value": text, "encoding": encoding}
        return text if encoding == "utf-8" else f"base64:{text}"

    return shown


CONTEXT = 3
"""Unchanged lines around a change."""
COMPARED_LINES = 4000
"""Maximum number of lines to compare; of more, between the first and the last change, all are shown as replaced."""

PatchLine = tuple[str, str]
"""A line without its newline, and its style."""


def patch_lines(key: str, before: bytes | None, after: bytes | None, *, conflict: bool = False) -> Iterator[PatchLine]:
    """Yield the lines of one key's difference; None stands for a key that does not exist."""
    if conflict:
        yield f"conflict: both sides changed `{key}`", "red bold"
    yield f"--- a/{key}" if before is not None else "--- /dev/null", "bold"
    yield f"+++ b/{key}" if after is not None else "+++ /dev/null", "bold"
    old, new = _text(before), _text(after)
    if old is None or new is None:
        yield f"Binary values: {_size(before)} -> {_size(after)}", ""
        return
    if old == new == "":
        return
    both_open = _is_open(old) == _is_open(new) or not (old and new)
    yield from _hunks(_lines(old, mark=not both_open), _lines(new, mark=not both_open))


def _text(value: bytes | None) -> str | None:
    """Return the value as text, empty for a missing key; None for binary data."""
    try:
        text = (value or b"").decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def _is_open(text: str) -> bool:
    return not text.endswith("\n")


def _lines(text: str, *, mark: bool) -> list[str]:
    """Split into lines; with `mark`, a note follows a last line that has no newline."""
    lines = text.removesuffix("\n").split("\n") if text else []
    if mark and lines and _is_open(text):
        lines[-1] += "\n\\ No newline at end of value"
    return lines


def _hunks(old: Sequence[str], new: Sequence[str]) -> Iterator[PatchLine]:
    for group in _groups(old, new):
        (_, first, _, second, _), (_, _, last, _, end) = group[0], group[-1]
        yield f"@@ -{_range(first, last)} +{_range(second, end)} @@", "cyan"
        for tag, a, b, c, d in group:
            if tag == "equal":
                yield from ((f" {line}", "") for line in old[a:b])
            else:
                yield from ((f"-{line}", "red") for line in old[a:b])
                yield from ((f"+{line}", "green") for line in new[c:d])


def _groups(old: Sequence[str], new: Sequence[str]) -> Iterator[list[tuple[str, int, int, int, int]]]:
    """Yield groups of changes with their context. What both begin and end with is not compared."""
    most = min(len(old), len(new))
    head = next((at for at in range(most) if old[at] != new[at]), most)
    tail = next((at for at in range(most - head) if old[-1 - at] != new[-1 - at]), most - head)
    start, one, other = max(head - CONTEXT, 0), len(old) - tail, len(new) - tail
    if max(one, other) - head > COMPARED_LINES:
        after = min(tail, CONTEXT)
        yield [
            ("equal", start, head, start, head),
            ("replace", head, one, head, other),
            ("equal", one, one + after, other, other + after),
        ]
        return
    after = min(tail, CONTEXT)
    matcher = difflib.SequenceMatcher(None, old[start : one + after], new[start : other + after], autojunk=False)
    for group in matcher.get_grouped_opcodes(CONTEXT):
        yield [(tag, a + start, b + start, c + start, d + start) for tag, a, b, c, d in group]


def _range(first: int, end: int) -> str:
    """Return the lines of a hunk as in a unified diff: `3,7`, `3` for one line, `0,0` for none."""
    length = end - first
    return f"{first + 1}" if length == 1 else f"{first + (1 if length else 0)},{length}"


def _size(value: bytes | None) -> str:
    return "none" if value is None else format_size(len(value))
