"""The map of the house in docs/ARCHITECTURE.md: every folder of kvctl/ with its purpose and its modules.

`python -m tests.support.house_map` writes it between the page's two markers.
"""

import ast
import textwrap
from collections.abc import Iterator
from pathlib import Path

from tests.support.readme import ROOT

PAGE = ROOT / "docs" / "ARCHITECTURE.md"
COMMAND = "python -m tests.support.house_map"
BEGIN = f"<!-- map: written by `{COMMAND}` -->"
END = "<!-- end of map -->"
WIDTH = 116


def house_map() -> str:
    """The code block: a paragraph for each folder."""
    return "```text\n" + "\n".join(_folder(folder) for folder in _folders(ROOT / "kvctl")) + "```\n"


def page_map() -> str:
    """The code block that the page holds now."""
    return PAGE.read_text(encoding="utf-8").partition(f"{BEGIN}\n")[2].partition(END)[0]


def write() -> None:
    """Replace the page's map. Raises ValueError where a marker is missing."""
    head, begin, rest = PAGE.read_text(encoding="utf-8").partition(f"{BEGIN}\n")
    _, end, tail = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{PAGE} needs the lines `{BEGIN}` and `{END}`")
    PAGE.write_text(f"{head}{begin}{house_map()}{end}{tail}", encoding="utf-8")


def purpose(folder: Path) -> str:
    """First line of the docstring of the folder's `__init__.py`."""
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0]


def _folders(folder: Path) -> Iterator[Path]:
    """A package and the packages below it, in the order of their names."""
    yield folder
    for child in sorted(folder.iterdir()):
        if (child / "__init__.py").exists():
            yield from _folders(child)


def _folder(folder: Path) -> str:
    indent = "    " * (len(folder.relative_to(ROOT).parts) - 1)
    modules = sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")
    lines = textwrap.wrap(" ".join(modules), WIDTH, initial_indent=f"{indent}    ", subsequent_indent=f"{indent}    ")
    name = f"{indent}{folder.name}/"
    return "\n".join([f"{name:24}{purpose(folder)}", *lines, ""])


if __name__ == "__main__":
    write()
