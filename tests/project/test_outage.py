"""The session of docs/outage.md, run as it stands on a lab of seven servers: its output is compared.

`python -m tests.project.test_outage` writes what the commands print now into the page.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.project.test_readme import Machine, readable
from tests.support.readme import ROOT, Block, blocks

FILE = ROOT / "docs" / "outage.md"
PAGE = FILE.read_text(encoding="utf-8")
DIRECTORY = "/tmp/kvctl-supercluster-a1b2c3d4"


@pytest.mark.slow
def test_outage_goes_as_the_page_shows():
    for block, printed in played():
        assert _shown(printed) == _shown(block.text), f"docs/outage.md:{block.line}"


def played() -> Iterator[tuple[Block, str]]:
    """The examples of the page, with what their commands print."""
    lab, *session = [block for block in blocks(PAGE) if block.language == "console"]
    with TemporaryDirectory(prefix="home") as home:
        machine = Machine(Path(home), Path(home))
        machine.environment["XDG_RUNTIME_DIR"] = home
        machine.start(lab)
        machine.environment |= dict(re.findall(r"^export (NATS_\w+)=(\S+)", PAGE, re.MULTILINE))
        try:
            for block in [lab, *session]:
                yield block, re.sub(r"/tmp/kvctl-supercluster-\w+", DIRECTORY, machine.run(block))
        finally:
            machine.close()


def _shown(text: str) -> list[str]:
    """The lines without what elections and round trips decide."""
    text = re.sub("─+", "─", re.sub(r"\b(lon|nyc)\d\b", r"\1N", text))
    return readable(re.sub(r"\d+\.\d ms", "N ms", text))


if __name__ == "__main__":
    for example, output in played():
        PAGE = PAGE.replace(f"\n{example.text}```", f"\n{output}```")
    FILE.write_text(PAGE, encoding="utf-8")
