"""A trace as lines of text: the key, then where it came from and where it goes. [pure]"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap

from kvctl.kv.entry import from_message
from kvctl.topology.model.notation import with_rules_text
from kvctl.topology.views.key_state import KeyState
from kvctl.topology.views.route import ABOVE, CYCLE, LIMIT
from kvctl.topology.views.text_tree import WIDTH, Line, Span, title
from kvctl.topology.views.trace import Trace, Traced
from kvctl.units import format_age

_GOOD = (KeyState.HELD, KeyState.ARRIVED)
_NEUTRAL = (KeyState.FILTERED_OUT, KeyState.ABSENT)
_BAD = (KeyState.LINK_DOWN, KeyState.OFFLINE, KeyState.STALE, KeyState.MISSING)
_ENDS = {ABOVE: " (above)", CYCLE: " (cycle)", LIMIT: " (and more)"}
_SHORTEST_TEXT = 20
"""Columns that evidence has at least, however deep its stop is."""


def text(trace: Trace) -> list[Line]:
    """Return the trace as lines of spans."""
    lines = [_title(trace.start), *_details(trace.start, "  ")]
    for heading, arrow, stops in (("Comes from", "◀─ ", trace.origins), ("Goes to", "─▶ ", trace.replicas)):
        if stops:
            lines += [[], [(heading, "bold")], *_tree(stops, arrow, "")]
    return lines


def _tree(stops: Sequence[Traced], arrow: str, margin: str) -> Iterator[Line]:
    for stop in stops:
        last = stop is stops[-1]
        yield [(margin + ("└" if last else "├") + arrow, "dim"), *_title(stop)]
        inner = margin + ("    " if last else "│   ")
        yield from ([(inner, "dim"), *line] for line in _details(stop, "  ", len(inner)))
        yield from _tree(stop.onward, arrow, inner)


def _title(stop: Traced) -> Line:
    """Return name, kind and place of a stream, the key and its state there."""
    line = title(stop.node, several=True)
    if stop.stop.subject is not None:
        line.append((f"  {stop.key or stop.stop.subject}", ""))
    if (state := _state(stop))[0]:
        line.append(state)
    return [*line, (_ENDS.get(stop.stop.end, ""), "dim")]


def _state(stop: Traced) -> Span:
    if stop.state is None:
        return "", ""
    entry = from_message("", 0, stop.message) if stop.message else None
    at = f", revision {entry.revision}, {format_age(entry.created_ns)}" if entry else ""
    return f"  {stop.state}{at}", _style(stop.state)


def _style(state: KeyState) -> str:
    if state in _GOOD:
        return "green"
    if state in _NEUTRAL:
        return "dim"
    return "red" if state in _BAD else "yellow"


def _details(stop: Traced, indent: str, margin: int = 0) -> Iterator[Line]:
    """Return the rules that take the key, or that do not, and the evidence of the state."""
    if stop.key is None and stop.stop.subject is not None:
        yield [(f"{indent}clients of `{stop.node.name}` do not find this subject", "red")]
    for words in stop.words:
        row = with_rules_text(words, stop.node.stream)
        if stop.state is KeyState.FILTERED_OUT:
            yield [(f"{indent}takes {row['taken']}", "dim")]
        elif row["taken"]:
            yield [(f"{indent}{row['taken']}" + (f" → {row['lands_as']}" if row["lands_as"] else ""), "dim")]
    style = "" if stop.state is None else _style(stop.state)
    for line in wrap(stop.evidence, max(WIDTH - margin - len(indent), _SHORTEST_TEXT)):
        yield [(indent + line, style)]
