"""Statistics of a bucket as a picture: a bar for each prefix, proportional to the size of its values. [pure]"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING

from kvctl.phrases import counted
from kvctl.units import format_size

if TYPE_CHECKING:
    from kvctl.pipeline.jobs.stats import Group, Stats

WIDTH = 760
_LEFT, _RIGHT, _ROW, _TOP, _BAR = 190, 210, 26, 92, 14
_LONGEST = 24
"""Maximum characters of a prefix shown."""
_STYLE = """\
  text { font-family: 'DejaVu Sans', Helvetica, Arial, sans-serif; font-size: 12px; fill: #57606a }
  .name { font-family: 'DejaVu Sans Mono', Menlo, Consolas, monospace; fill: #1f2328; text-anchor: end }
  .title { font-size: 16px; font-weight: bold; fill: #1f2328 }
  .bytes { fill: #54aeff } .changed { fill: #0969da }
"""


def picture(stats: Stats) -> str:
    """Return a self-contained SVG on white; the darker part of a bar are keys that changed within a day."""
    total, rows = stats.total, stats.prefixes
    height = _TOP + _ROW * max(len(rows), 1) + 18
    most = max((group.bytes for group in rows), default=0) or 1
    kept = f"{total.entries} entries" + (f", up to {stats.history} per key" if stats.history > 1 else "")
    summary = f"{_keys(total)}, {total.deleted} deleted, {kept}, {format_size(total.bytes)}"
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<title>Bucket {escape(stats.bucket)} at revision {stats.cut}</title>",
        f"<style>\n{_STYLE}</style>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text class="title" x="16" y="28">{escape(stats.bucket)} at revision {stats.cut}</text>',
        f'<text x="16" y="48">{summary}</text>',
        '<rect class="changed" x="16" y="62" width="12" height="12"/><text x="34" y="73">changed within a day</text>',
        '<rect class="bytes" x="180" y="62" width="12" height="12"/><text x="198" y="73">older</text>',
        *(line for number, group in enumerate(rows) for line in _row(group, _TOP + _ROW * number, most)),
        "</svg>", "",
    ])  # fmt: skip


def _row(group: Group, y: int, most: int) -> Iterator[str]:
    middle = y + _ROW // 2 + 4
    name = escape(_name(group.prefix))
    length = (WIDTH - _LEFT - _RIGHT) * group.bytes / most
    changed = length * min(group.changed_today / max(group.keys + group.deleted, 1), 1)
    top = y + (_ROW - _BAR) // 2
    yield f'<text class="name" x="{_LEFT - 10}" y="{middle}">{name}</text>'
    yield f'<rect class="bytes" x="{_LEFT}" y="{top}" width="{max(length, 1):.1f}" height="{_BAR}"/>'
    if changed:
        yield f'<rect class="changed" x="{_LEFT}" y="{top}" width="{changed:.1f}" height="{_BAR}"/>'
    yield f'<text x="{_LEFT + length + 8:.1f}" y="{middle}">{format_size(group.bytes)}, {_keys(group)}</text>'


def _name(prefix: str) -> str:
    text = f"{prefix}." if prefix else "without a dot"
    text = "".join(c if c.isprintable() else "\ufffd" for c in text)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}\u2026"


def _keys(group: Group) -> str:
    return counted(group.keys, "key")
