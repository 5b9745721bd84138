"""Text of `kvctl repo log`: a block for each commit, or one line beside a graph."""

from collections.abc import AsyncIterator, Mapping, Sequence

from kvctl.cli.repo import commit_graph
from kvctl.cli.repo.views import subject
from kvctl.render.escapes import escape, utf8
from kvctl.render.fields import short
from kvctl.render.terminal import paint
from kvctl.render.view import age_text
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
