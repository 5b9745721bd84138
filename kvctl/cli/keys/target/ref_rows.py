"""Entries of repositories as rows, and options that key commands reject at a ref."""

from collections.abc import Sequence
from typing import Any

from kvctl.cli.records import ENTRY_AT_REF, WRITE_AT_REF
from kvctl.cli.repo.options import At
from kvctl.cli.table.views import text_of
from kvctl.errors import UsageError
from kvctl.render.fields import columns, short
from kvctl.render.view import Column, Row, View
from kvctl.units import format_time
from kvctl.versions import history, model

"""Fields of any entry in tsv."""


def refuse(at: str, **given: object) -> None:
    """Raise UsageError for options that apply only to buckets."""
    for name, value in given.items():
        if value is not None and value is not False:
            raise UsageError(
                f"`--{name.replace('_', '-')}` applies only to buckets, not to `{at}`",
                hint=_WHY.get(name, "`kvctl help versions`"),
            )


_WHY = {
    "ttl": "Entries of a repository do not expire",
    "headers": "Entries of a repository have no headers",
    "literal": "Repositories have no non-conforming keys",
    "revision": "Use a ref instead, as in `NAME@main~2`, `NAME@v1` or a commit's id",
    "as_of": "Use a ref instead, as in `NAME@main~2`, `NAME@v1` or a commit's id",
    "deleted": "`kvctl repo status` shows staged deletions, `kvctl history NAME@REF` committed ones",
    "history": "`kvctl history NAME@REF -o ndjson` writes the entries of all commits",
}


def entry_row(at: At, entry: "model.VersionedEntry", encoding: str | None = None) -> dict[str, Any]:
    """Return the row of an entry. Raises KvctlError for a forced `utf-8`."""
    row: dict[str, Any] = {"bucket": at.repository, "ref": at.ref, "key": entry.key}
    if entry.revision is not None:
        row["revision"] = entry.revision
    row["operation"] = "PUT"
    row["value"], row["encoding"] = text_of(entry.value, encoding)
    return row | {"identity": entry.identity}


def version_row(at: At, version: "history.KeyVersion", encoding: str | None = None) -> dict[str, Any]:
    """Return the row of a key's change in one commit or in staging."""
    row: dict[str, Any] = {"bucket": at.repository, "ref": at.ref, "key": version.key}
    commit = version.commit
    if version.revision is not None:
        row["revision"] = version.revision
    if commit is not None:
        row["created"] = format_time(commit.created_ns)
    row["operation"] = "DEL" if version.value is None else "PUT"
    row["value"], row["encoding"] = text_of(version.value or b"", encoding)
    row["identity"] = version.identity
    if commit is not None:
        row |= {"commit": commit.id, "author": commit.author, "message": commit.message}
    return row


def written_row(at: At, key: str, revision: int | None, identity: str | None) -> dict[str, Any]:
    """Return the row of a write."""
    return {"bucket": at.repository, "ref": at.ref, "key": key, "revision": revision, "identity": identity}


def written_view(rows: Sequence[Row], *, single: bool, empty: str = "") -> View:
    """Return a view of writes: only the revisions in a pipe."""
    return View(
        columns=columns("revision" if single else "key revision"),
        tsv=WRITE_AT_REF.columns,
        rows=rows,
        single=single,
        name="key",
        empty=empty,
        light=True,
    )


def entries_view(rows: Sequence[Row] = (), *, single: bool = False, empty: str = "") -> View:
    """Return a view of entries at a ref."""
    names = "key revision identity value" if single else "revision identity key value"
    staged, identity = "Staged revision" if single else "Staged", Column("identity", text=None if single else short)
    shown = columns(names, revision=staged, identity=identity)
    return View(columns=shown, tsv=ENTRY_AT_REF.columns, rows=rows, single=single, name="key", empty=empty)


def versions_view(*, empty: str = "") -> View:
    """Return a view of the changes of keys, commit by commit."""
    shown = columns("commit created operation key value message", created="Age")
    return View(columns=shown, tsv=ENTRY_AT_REF.columns, name="key", empty=empty)
