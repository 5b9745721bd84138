"""Help topics: pages in Markdown, which `kvctl help TOPIC` prints."""

from pathlib import Path

_FOLDER = Path(__file__).parent


def titles() -> dict[str, str]:
    """Names of the topics, with their titles: the first heading of each page."""
    return {path.stem: _title(path) for path in sorted(_FOLDER.glob("*.md"))}


def page(topic: str) -> str:
    """Read the page of a topic."""
    return (_FOLDER / f"{topic}.md").read_text(encoding="utf-8")


def _title(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        return file.readline().strip("# \n")
