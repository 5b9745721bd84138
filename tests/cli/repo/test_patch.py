"""Differences of keys as a patch."""

import random
import re

import pytest

from kvctl.cli.repo import views
from kvctl.cli.repo.views import patch_lines


def shown(before: bytes | None, after: bytes | None, **settings: bool) -> list[str]:
    return [text for text, _ in patch_lines("app.yaml", before, after, **settings)]


def test_patch_shows_changed_lines_with_their_context():
    before = b"server:\n  port: 8080\n  host: a\n  workers: 4\nlog:\n  level: info\n  path: -\n"
    after = before.replace(b"8080", b"9090")
    assert "\n".join(shown(before, after)) == (
        "--- a/app.yaml\n+++ b/app.yaml\n@@ -1,5 +1,5 @@\n"
        " server:\n-  port: 8080\n+  port: 9090\n   host: a\n   workers: 4\n log:"
    )


@pytest.mark.parametrize(
    ("before", "after", "lines"),
    [
        (b"80", b"81", ["--- a/app.yaml", "+++ b/app.yaml", "@@ -1 +1 @@", "-80", "+81"]),
        (None, b"a\nb", ["--- /dev/null", "+++ b/app.yaml", "@@ -0,0 +1,2 @@", "+a", "+b"]),
        (b"a\n", None, ["--- a/app.yaml", "+++ /dev/null", "@@ -1 +0,0 @@", "-a"]),
        (None, b"", ["--- /dev/null", "+++ b/app.yaml"]),
        (b"\xff", b"a", ["--- a/app.yaml", "+++ b/app.yaml", "Binary values: 1 B -> 1 B"]),
        (b"a\0b", None, ["--- a/app.yaml", "+++ /dev/null", "Binary values: 3 B -> none"]),
        (b"a\n", b"a", ["--- a/app.yaml", "+++ b/app.yaml", "@@ -1 +1 @@", "-a", "+a\n\\ No newline at end of value"]),
    ],
)
def test_patch_of_values_that_begin_or_end(before, after, lines):
    assert shown(before, after) == lines


def test_patch_of_a_conflict_says_so_first():
    assert shown(b"1", b"2", conflict=True)[0] == "conflict: both sides changed `app.yaml`"


@pytest.mark.parametrize("compared", [3, 4000])
def test_patch_applied_to_the_old_text_gives_the_new_one(seed, compared, monkeypatch):
    monkeypatch.setattr(views, "COMPARED_LINES", compared)
    chance = random.Random(seed)
    for _ in range(300):
        old = [chance.choice("abcde") for _ in range(chance.randint(0, 30))]
        new = list(old)
        for _ in range(chance.randint(1, 5)):
            at = chance.randint(0, len(new))
            new[at : at + chance.randint(0, 3)] = [chance.choice("abcdef") for _ in range(chance.randint(0, 3))]
        if old and new and old != new:
            before, after = ("".join(f"{line}\n" for line in lines) for lines in (old, new))
            assert applied(old, shown(before.encode(), after.encode())[2:]) == new


def applied(old: list[str], lines: list[str]) -> list[str]:
    """Apply the hunks as `patch` does, strictly."""
    made: list[str] = []
    at = 0
    for line in lines:
        if found := re.fullmatch(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@", line):
            first, length = int(found[1]), int(found[2] or 1)
            begin = first - 1 if length else first
            made += old[at:begin]
            at = begin
            assert int(found[3]) == len(made) + (0 if found[4] == "0" else 1)
            continue
        sign, text = line[0], line[1:]
        if sign != "+":
            assert old[at] == text
            at += 1
        if sign != "-":
            made.append(text)
    return made + old[at:]
