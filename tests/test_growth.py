"""Time grows with the size of an input, not with its square: steps are counted for Python, characters for patterns."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from kvctl.connection import client_options
from kvctl.documents import parser, variables
from kvctl.errors import KvctlError
from kvctl.kv.transaction import transaction_file
from kvctl.phrases import quoted
from kvctl.render.escapes import escape
from kvctl.render.widths import wrapped
from kvctl.topology.hazards import cycle
from kvctl.topology.model.file import read_topology
from kvctl.topology.plan import desired
from kvctl.topology.survey.graph import reach
from kvctl.topology.views import drawing
from kvctl.units import parse_duration, parse_size, parse_time
from kvctl.urls import redact
from kvctl.wire import decode_headers

SMALL, FACTOR, MOST = 150, 4, 5.5
"""Size of an input, how many times larger the other one is, and how many times more steps it may take."""


def steps(work: Callable[[], object]) -> int:
    """The number of calls, of Python's functions and others."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def topology(names: list[tuple[str, str]], section: str) -> Any:
    """A topology of replicas, each with its origin."""
    origin = {"mirrors": "origin: {}", "aggregates": "origins: [{}]"}[section]
    lines = "".join(f"  {name}: {{{origin.format(of)}}}\n" for name, of in names)
    text = f"version: 1\nbuckets: {{B0: {{history: 3}}}}\n{section}:\n{lines}"
    return read_topology(parser.parse(text.encode(), "t.yaml"))


SHAPES: dict[str, Callable[[int], list[tuple[str, str]]]] = {
    "chain": lambda size: [(f"B{n}", f"B{n - 1}") for n in range(1, size + 1)],
    "reversed chain": lambda size: [(f"B{n}", f"B{n - 1}") for n in range(size, 0, -1)],
    "star": lambda size: [(f"B{n}", "B0") for n in range(1, size + 1)],
    "tree": lambda size: [(f"B{n}", f"B{(n - 1) // 2}") for n in range(1, size + 1)],
}


@pytest.mark.parametrize("section", ["mirrors", "aggregates"])
@pytest.mark.parametrize("shape", SHAPES)
def test_topologies_are_derived_and_drawn_in_linear_time(shape, section):
    def work(size: int) -> Callable[[], object]:
        made = topology(SHAPES[shape](size), section)
        return lambda: (
            desired.render(made),
            drawing.text(drawing.of_topology(made)),
            drawing.svg(drawing.of_topology(made)),
        )

    assert steps(work(SMALL * FACTOR)) < MOST * steps(work(SMALL))


@pytest.mark.parametrize("shape", SHAPES)
def test_chains_longer_than_the_stack_are_derived_and_drawn(shape):
    made = topology(SHAPES[shape](1500), "aggregates")
    assert len(desired.render(made)[0] if isinstance(desired.render(made), tuple) else desired.render(made)) >= 1500
    assert drawing.text(drawing.of_topology(made))


@pytest.mark.parametrize("shape", SHAPES)
def test_cycles_and_neighbours_are_found_in_linear_time(shape):
    def work(size: int) -> Callable[[], object]:
        pairs = SHAPES[shape](size)
        readings = [cycle.Replication(("", name), ("", of), {"name": of}) for name, of in pairs]
        return lambda: (cycle.cycles(readings), reach(["B0"], [(of, name) for name, of in pairs]))

    assert steps(work(SMALL * FACTOR)) < MOST * steps(work(SMALL))


def document(text: Callable[[int], str], source: str = "t.yaml") -> Callable[[int], object]:
    return lambda size: variables.expanded(parser.parse(text(size).encode(), source), {"X": "y"})


INPUTS: dict[str, Callable[[int], object]] = {
    "keys": document(lambda size: "".join(f"k{n}: v\n" for n in range(size))),
    "aliases": document(lambda size: "a: &a [1]\n" + "".join(f"k{n}: *a\n" for n in range(size))),
    "merges": document(lambda size: "a: &a {x: 1}\nb: {<<: [" + ",".join("*a" for _ in range(size)) + "]}\n"),
    "open quotes": document(lambda size: "a: '" + "''" * size * 10),
    "open flow": document(lambda size: "[" * 50 + "1," * size),
    "variables": document(lambda size: "a: '" + "${X}" * size + "'"),
    "open variables": document(lambda size: "a: '" + "${" * size * 10 + "'"),
    "escaped variables": document(lambda size: "a: '" + "$${" * size * 10 + "'"),
    "changes": lambda size: transaction_file.read_transaction(
        parser.parse(('{"then":[' + ",".join(f'{{"put":"k{n}","valu":"1"}}' for n in range(size)) + "]}").encode(), "t")
    ),
    "words": lambda size: wrapped("word " * size * 10, 80, 2),
    "a long word": lambda size: wrapped("x" * size * 50, 80, 2),
    "controls": lambda size: escape("\x1b" * size * 20),
    "urls": lambda size: redact("nats://" + "a:b@" * size * 20),
    "durations": lambda size: parse_duration("1.1" * size * 20),
    "sizes": lambda size: parse_size("1" * size * 20),
    "times": lambda size: parse_time("2026-01-01T00:00:00." + "1" * size * 20),
    "names": lambda size: quoted(str(n) for n in range(size)),
    "headers": lambda size: decode_headers(b"NATS/1.0\r\n" + b"A: x\r\n" * size + b"\r\n"),
    "credentials": lambda size: client_options._JWT.search("eyJ-" * size * 20),
    "more credentials": lambda size: client_options._JWT.search("eyJa." * size * 20),
}


@pytest.mark.parametrize("name", INPUTS)
def test_parsers_take_linear_time(name):
    def work(size: int) -> None:
        with suppress(KvctlError):
            INPUTS[name](size)

    work(1)
    assert steps(lambda: work(SMALL * FACTOR)) < MOST * steps(lambda: work(SMALL)) + 100
    begun = time.process_time()
    work(SMALL * FACTOR * 10)
    assert time.process_time() - begun < 4  # a pattern that looks at characters again takes minutes
