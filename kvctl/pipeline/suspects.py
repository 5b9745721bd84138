"""Keys that seem to differ between two sides, kept on disk: an audit of very different buckets may find millions."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator

from kvctl.errors import KvctlError

_HINT = "Set `TMPDIR` to another directory for temporary files"


class Suspects:
    """Subjects in order, some with their name at an origin. All methods raise KvctlError if the disk is full."""

    def __init__(self, rows: Iterable[tuple[str, int, str | None]]) -> None:
        """Store rows of a subject, the number of an origin and the subject's name there, each subject once."""
        # A database without a name is a private temporary file. It is filled in one thread and read in another.
        self._base = sqlite3.connect("", check_same_thread=False)
        try:
            self._base.execute("create table suspects (subject blob primary key, number int, name blob) without rowid")
            rows = ((_raw(subject), number, name and _raw(name)) for subject, number, name in rows)  # type: ignore[misc]
            self._base.executemany("insert into suspects values (?, ?, ?)", rows)
        except sqlite3.Error as error:
            raise KvctlError(f"Could not store the keys that seem to differ: {error}", hint=_HINT) from None

    def __iter__(self) -> Iterator[str]:
        for (subject,) in self._base.execute("select subject from suspects order by subject"):
            yield subject.decode("utf-8", "surrogateescape")

    def __len__(self) -> int:
        return int(self._base.execute("select count(*) from suspects").fetchone()[0])

    def name(self, number: int, landed: str) -> str | None:
        """Return the subject's name at an origin, if stored."""
        query = "select name from suspects where subject = ? and number = ?"
        found = self._base.execute(query, (_raw(landed), number)).fetchone()
        return found[0].decode("utf-8", "surrogateescape") if found and found[0] is not None else None


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
