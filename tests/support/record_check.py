"""Checks of every record that a test's command prints against the catalogue in `kvctl/cli/records.py`.

A command whose output has other fields or columns than declared fails as with a defect of kvctl.
"""

from collections.abc import Sequence
from typing import Any

from kvctl.cli import records
from kvctl.cli.app.command import Command
from kvctl.cli.app.session import Session
from kvctl.cli.records import ANY, PARTS, PrintedRecord
from kvctl.render.formats import TsvWriter, Writer
from kvctl.render.view import Row, View, arranged

_ENTRIES = (
    *(records.ENTRY, records.ENTRY_META, records.ENTRY_AT_REF, records.KEY, records.KEY_AT_REF, records.TABLE_ENTRY),
    *(records.TABLE_KEY, records.WRITE, records.WRITE_AT_REF, records.TXN, records.TABLE_WRITE),
    *(records.STORED_MESSAGE, records.DELIVERED_MESSAGE),
)
"""Records whose columns of tsv are not those of the table, because programs read the entries and their revisions."""


def install() -> None:
    """Check all commands that this process runs from now on."""
    invoke, writer_of, running = Command.invoke, Session._writer, _Running()

    def noted(self: Command, ctx: Any) -> Any:
        running.path, running.prints = ctx.command_path, self.prints
        return invoke(self, ctx)

    def checked(self: Session, view: View, **settings: Any) -> Writer:
        writer = writer_of(self, view, **settings)
        path = running.path
        if path.startswith("kvctl thing "):  # commands of tests/cli/demo.py
            return writer
        if isinstance(writer, TsvWriter) and not self.options.columns:
            assert any(is_tsv_of(record, writer.keys) for record in running.prints), _undeclared(path, writer.keys)
        entries = any(record in _ENTRIES for record in running.prints)
        if not (view.single or self.options.columns or entries or ANY in running.prints):
            assert view.tsv is None, f"`{path}` is a listing"
            assert any(is_table_of(record, view) for record in running.prints), _undeclared(path, _table(view))
        return _Checked(writer, path, running.prints) if self.output in ("json", "ndjson", "yaml") else writer

    Command.invoke = noted  # type: ignore[method-assign]
    Session._writer = checked  # type: ignore[method-assign]


class _Running:
    """Path and records of the command that runs."""

    path = ""
    prints: tuple[PrintedRecord, ...] = ()


class _Checked:
    def __init__(self, writer: Writer, path: str, prints: tuple[PrintedRecord, ...]) -> None:
        self._writer = writer
        self._path = path
        self._prints = prints

    def begin(self) -> bytes:
        return self._writer.begin()

    def rows(self, batch: Sequence[Row]) -> bytes:
        known = self._prints
        for row in batch:
            if row is not None and ANY not in known:
                assert any(_is_row_of(record, list(row)) for record in known), _undeclared(self._path, list(row))
                _check_parts(self._path, row)
        return self._writer.rows(batch)

    def end(self) -> bytes:
        return self._writer.end()


def _check_parts(path: str, row: Row) -> None:
    """Compare the objects in declared fields, at any depth."""
    for name, value in row.items():
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, dict) and name in PARTS:
                assert any(_is_row_of(record, list(part)) for record in PARTS[name]), (
                    f"declare the objects in `{name}` of `{path}` in kvctl/cli/records.py: {' '.join(part)}"
                )
                _check_parts(path, part)


def _is_row_of(record: PrintedRecord, names: list[str]) -> bool:
    wanted = [name for name in record.fields if name in names or name not in record.optional]
    return names == wanted


def is_tsv_of(record: PrintedRecord, names: list[str]) -> bool:
    """Columns that an option adds, such as `--headers`, follow the others."""
    columns = [name for name in record.columns if name in names or name not in record.optional]
    return names[: len(columns)] == columns and set(names[len(columns) :]) <= set(record.fields)


def is_table_of(record: PrintedRecord, view: View) -> bool:
    """Compare names and headings in order; a column without a heading shows a mark or a bar."""
    if view.columns and not is_tsv_of(record, TsvWriter(view).keys):
        return False
    shown = [column for column in arranged(view.columns) if not column.bar]
    return all(column.heading in ("", record.headings.get(column.key)) for column in shown)


def _table(view: View) -> list[str]:
    return [f"{column.key}={column.heading}" for column in arranged(view.columns)]


def _undeclared(path: str, names: list[str]) -> str:
    return f"declare the fields of `{path}` in kvctl/cli/records.py: {' '.join(names)}"
