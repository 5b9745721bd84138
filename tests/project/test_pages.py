"""The pages of docs/, run as they stand, each on a server or a lab of its own: their output is compared.

`python -m tests.project.test_pages [README NAME...]` writes what their commands print now into the pages.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.project.test_readme import SETUP, Machine, readable
from tests.support.readme import BLOCK, README, ROOT, Block, blocks

FILES = {path.stem: path for path in sorted((ROOT / "docs").glob("*.md")) if path.stem.islower()}
TEXTS = {name: path.read_text(encoding="utf-8") for name, path in FILES.items()}
RUN = [name for name, text in TEXTS.items() if BLOCK.search(text)]
SERVER = "$ kvctl server run"
SLOW = {"spark", *(name for name in RUN if f"{SERVER} --lab" in TEXTS[name])}
MARKED = [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in RUN]


@pytest.mark.parametrize("name", MARKED)
def test_page_shows_what_happens(name):
    for block, printed in played(TEXTS[name]):
        if block.language in ("console", "text"):
            assert shown(printed) == shown(block.text), f"docs/{name}.md:{block.line}"


@pytest.mark.parametrize("name", TEXTS)
def test_links_of_a_page_lead_somewhere(name):
    targets = re.findall(r"\]\(([^)#]+)\)", TEXTS[name])
    assert not [target for target in targets if "://" not in target and not (ROOT / "docs" / target).exists()]
    assert TEXTS[name].count("\n```") == 2 * len(blocks(TEXTS[name]))


def test_readme_links_to_every_page():
    assert not [name for name in TEXTS if f"](docs/{name}.md)" not in README]


def test_excerpts_in_readme_are_those_of_the_outage():
    excerpts = re.findall(r"(?:^ {4}.*\n|^\n(?= {4}))+", BLOCK.sub("", README), re.MULTILINE)
    page = "\n".join(shown(TEXTS["outage"]))
    for text in excerpts:
        assert "\n".join(shown(re.sub("^ {4}", "", text, flags=re.MULTILINE))) in page


def played(text: str) -> Iterator[tuple[Block, str]]:
    """The examples of a page, each with what it prints, or for a text the example above it."""
    examples = [block for block in blocks(text) if block.heading != SETUP]
    start = next(block for block in [*examples, *blocks()] if block.text.startswith(SERVER))
    printed = ""
    with TemporaryDirectory(prefix="home") as home:
        machine = Machine(Path(home), Path(home))
        machine.environment["XDG_RUNTIME_DIR"] = home
        machine.start(start)
        machine.environment |= dict(re.findall(r"^export (NATS_\w+)=(\S+)", text, re.MULTILINE))
        try:
            for block in examples:
                printed = printed if block.language == "text" else machine.run(block)
                yield block, printed
        finally:
            machine.close()


def shown(text: str) -> list[str]:
    """The lines without what elections, round trips and random names decide."""
    text = re.sub(r"\b(lon|nyc)\d\b", r"\1N", re.sub(r"/tmp/kvctl-\w+-\w+", "DIRECTORY", text))
    return readable(re.sub(r"\d+\.\d ms", "N ms", text))


def rewritten(text: str) -> str:
    """The page with what its examples print now."""
    for block, printed in played(text):
        if block.language not in ("console", "text") or (block.text.startswith(SERVER) and "--lab" not in block.text):
            continue
        for typed in re.findall(r"^\$ .*(?:\n> .*)+", block.text, re.MULTILINE):
            printed = printed.replace(typed.replace("\\\n> ", ""), typed)
        printed = re.sub(r"(/tmp/kvctl-[a-z]+-)\w+", r"\1a1b2c3d4", re.sub(r" +\n", "\n", printed.rstrip()))
        printed = re.sub(r"/tmp/home\w+", "/home/you", printed)
        text = text.replace(f"\n{block.text}```", f"\n{printed}\n```")
    return text


if __name__ == "__main__":
    for page in sys.argv[1:] or RUN:
        file = FILES.get(page, ROOT / f"{page}.md")
        file.write_text(rewritten(file.read_text(encoding="utf-8")), encoding="utf-8")
