"""The session of docs/outage.md, run as it stands on a lab of seven servers: its output is compared."""

import re
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.project.test_readme import Machine, readable
from tests.support.readme import ROOT, blocks

PAGE = (ROOT / "docs" / "outage.md").read_text(encoding="utf-8")
LAB, *SESSION = [block for block in blocks(PAGE) if block.language == "console"]


@pytest.mark.slow
def test_outage_goes_as_the_page_shows(tmp_path):
    with TemporaryDirectory(prefix="home") as home:
        machine = Machine(tmp_path, Path(home))
        machine.environment["XDG_RUNTIME_DIR"] = home
        machine.start(LAB)
        machine.environment |= dict(re.findall(r"^export (NATS_\w+)=(\S+)", PAGE, re.MULTILINE))
        try:
            for block in [LAB, *SESSION]:
                assert _shown(machine.run(block)) == _shown(block.text), f"docs/outage.md:{block.line}"
        finally:
            machine.close()


def _shown(text: str) -> list[str]:
    """The lines without what elections, round trips and random names decide."""
    text = re.sub(r"/tmp/kvctl-supercluster-\w+", "DIRECTORY", text)
    text = re.sub("─+", "─", re.sub(r"\b(lon|nyc)\d\b", r"\1N", text))
    return readable(re.sub(r"\d+\.\d ms", "N ms", text))
