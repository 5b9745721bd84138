"""Entries of repositories as rows, and what key commands refuse at a ref."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kvctl.cli.repo.options import At
from kvctl.cli.repo.views import short
from kvctl.cli.table.views import text_of
from kvctl.errors import UsageError
from kvctl.render.view import Column, Row, View, age_text
from kvctl.units import format_time

if TYPE_CHECKING:
    from kvctl.versions.key_history import KeyVersion
    from kvctl.versions.model import VersionedEntry

_RECORD = ("bucket", "key", "revision", "created", "operation", "value", "encoding")
"""What tsv has of any entry."""


def refuse(at: str, **given: object) -> None:
    """Raises UsageError for options that mean something for buckets alone."""
    for name, value in given.items():
        if value is not None and value is not False:
            raise UsageError(
                f"`--{name.replace('_', '-')}` is for buckets, not for `{at}`",
                hint=_WHY.get(name, "`kvctl help versions`"),
            )


_WHY = {
    "ttl": "An entry of a repository is key and value: nothing in it expires",
    "headers": "An entry of a repository is key and value: it has no headers",
    "literal": "Keys of a repository follow ADR-8: none has to be taken literally",
    "revision": "The ref says which state is meant: `NAME@main~2`, `NAME@v1`, a commit's id",
    "as_of": "The ref says which state is meant: `NAME@main~2`, `NAME@v1`, a commit's id",
    "deleted": "`kvctl repo status` shows what is staged, deletions too; `kvctl history NAME@REF` what was",
    "history": "`kvctl history NAME@REF -o ndjson` writes the entries of all commits",
}


def entry_row(
    at: At, entry: "VersionedEntry", revisions: Mapping[str, int], encoding: str | None = None
) -> dict[str, Any]:
    """An entry at a ref; `revisions` has those of staged ones. Raises KvctlError for a forced `utf-8`."""
    row: dict[str, Any] = {"bucket": at.repository, "ref": at.ref, "key": entry.key}
    if entry.key in revisions:
        row["revision"] = revisions[entry.key]
    row["operation"] = "PUT"
    row["value"], row["encoding"] = text_of(entry.value, encoding)
    return row | {"identity": entry.identity}


def version_row(
    at: At, version: "KeyVersion", revisions: Mapping[str, int], encoding: str | None = None
) -> dict[str, Any]:
    """What became of a key in one commit, or is staged: `revisions` has those of staged ones."""
    row: dict[str, Any] = {"bucket": at.repository, "ref": at.ref, "key": version.key}
    commit = version.commit
    if commit is None and version.key in revisions:
        row["revision"] = revisions[version.key]
    if commit is not None:
        row["created"] = format_time(commit.created_ns)
    row["operation"] = "DEL" if version.value is None else "PUT"
    row["value"], row["encoding"] = text_of(version.value or b"", encoding)
    row["identity"] = version.identity
    if commit is not None:
        row |= {"commit": commit.id, "author": commit.author, "message": commit.message}
    return row


def written_row(at: At, key: str, revision: int | None, identity: str | None) -> dict[str, Any]:
    """What a write gives."""
    return {"bucket": at.repository, "ref": at.ref, "key": key, "revision": revision, "identity": identity}


def entries_view(rows: Sequence[Row] = (), *, single: bool = False, empty: str = "") -> View:
    """Entries at a ref."""
    shown = [
        Column("key", tsv=False),
        Column("revision", "STAGED" if not single else "Staged revision", right=not single, tsv=False),
        Column("identity", text=short if not single else None, tsv=False),
        Column("value", flex=True, tsv=False),
    ]
    return View(columns=[*_record(), *shown], rows=rows, single=single, name="key", empty=empty)


def versions_view(*, empty: str = "") -> View:
    """What became of keys, commit by commit."""
    from kvctl.cli.keys.output.entry_rows import operation_style

    shown = [
        Column("key", tsv=False),
        Column("commit", text=short, style="yellow", tsv=False),
        Column("created", "AGE", text=age_text, tsv=False),
        Column("operation", style=operation_style, tsv=False),
        Column("value", flex=True, tsv=False),
        Column("message", text=lambda message: message.partition("\n")[0], flex=True, tsv=False),
    ]
    return View(columns=[*_record(), *shown], name="key", empty=empty)


def _record() -> list[Column]:
    return [Column(name, table=False) for name in _RECORD]
