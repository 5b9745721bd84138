"""Interface of targets: how key commands read and write keys, of a bucket or of a ref alike."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, BinaryIO, NamedTuple

import kvctl
from kvctl.cli.app.session import Session
from kvctl.cli.keys import removal
from kvctl.cli.keys.output import Shape
from kvctl.kv.bulk import bulk_writer, dumper, input_file, loader
from kvctl.render.view import Row, View

Fact = tuple[Any, ...]
"""The key and what a listing shows of it, in the terms of its reader."""


class Reading(NamedTuple):
    """State to read, and the shape of its rows. All but `leader` and the encoding are for buckets only."""

    shape: Shape
    revision: int | None = None
    as_of: "kvctl.Moment | None" = None
    leader: bool = False
    literal: bool = False


class TargetReader(ABC):
    """One state of the keys: of a bucket now or at an earlier moment, or of a ref."""

    place: str
    """Name in messages: ``bucket `orders` ``, ``bucket `orders` as of revision 12``, `` `config@main` ``."""
    fields: dict[str, str]
    """Fields that name the target in JSON."""
    listing: str | None = None
    """Hint for missing keys."""
    caveat: str | None = None
    """Warning about what may be missing from the state."""

    @abstractmethod
    async def one(self, key: str) -> Any:
        """Return the entry of a key. Raises KeyNotFound."""

    @abstractmethod
    async def named(self, keys: Sequence[str]) -> list[Any | None]:
        """Return the entries of keys, None for keys that do not exist."""

    @abstractmethod
    def matching(self, filters: Sequence[str]) -> AsyncGenerator[list[Any], None]:
        """Yield the entries of matching keys, in batches."""

    @abstractmethod
    def names(self, filters: Sequence[str], *, deleted: bool) -> AsyncGenerator[list[bytes], None]:
        """Yield the names of matching keys, in batches."""

    @abstractmethod
    def facts(self, filters: Sequence[str], *, deleted: bool) -> AsyncGenerator[list[Fact], None]:
        """Yield what a listing shows of matching keys, in batches."""

    @abstractmethod
    async def fact_rows(self, facts: Sequence[Fact], *, deleted: bool) -> Sequence[Row]:
        """Return the rows of such facts."""

    @abstractmethod
    def facts_view(self, *, deleted: bool) -> View:
        """Return a view of such rows."""

    @abstractmethod
    def history(self, filters: Sequence[str], since: "kvctl.Moment | None") -> AsyncGenerator[list[Any], None]:
        """Yield every change of matching keys, at a time or later, oldest first, in batches."""

    @abstractmethod
    async def show(self, session: Session, batches: AsyncGenerator[list[Any], None], *, empty: str) -> None:
        """Print entries as they arrive."""

    @abstractmethod
    async def show_history(self, session: Session, batches: AsyncGenerator[list[Any], None]) -> None:
        """Print changes of keys as they arrive."""

    @abstractmethod
    async def show_one(self, session: Session, entry: Any) -> None:
        """Print the bare value of an entry, or the entry if a format or headers were requested."""


class TargetWriter(ABC):
    """Writes of single keys. Each returns the row of the new entry."""

    @abstractmethod
    async def put(self, key: str, value: bytes, *, if_different: bool = False) -> Row:
        """Write the value; with `if_different`, return the current row of a key that has it already."""

    @abstractmethod
    async def create(self, key: str, value: bytes, *, ttl: "timedelta | None" = None) -> Row:
        """Write a key that does not exist. Raises KeyExists."""

    @abstractmethod
    async def update(self, key: str, value: bytes, expected: str, *, ttl: "timedelta | None" = None) -> Row:
        """Write the value if the key is at the expected revision or identity. Raises ConflictError, UsageError."""

    @abstractmethod
    async def show(self, row: Row, *, ttl: "timedelta | None" = None, rewritten: bool = False) -> None:
        """Print the row of a write, then warn about its ttl; `rewritten` if the key may have had another value."""


class Target(ABC):
    """A bucket or a ref, before anything was sent."""

    resumable: bool
    """True if an interrupted load continues where it stopped."""

    def __init__(self, text: str) -> None:
        self.text = text

    @abstractmethod
    def refuse(self, **given: object) -> None:
        """Raise UsageError for options that a target of this kind does not have; None and False are not given."""

    @abstractmethod
    def check_writable(self, session: Session, *, dry_run: bool = False) -> None:
        """Raise UsageError for a name that is not valid or takes no writes, ReadOnly unless it is a dry run."""

    @abstractmethod
    def check_expected(self, text: str) -> None:
        """Raise UsageError for what cannot be the expected state of a key here."""

    @abstractmethod
    async def reader(self, session: Session, reading: Reading | None = None) -> TargetReader:
        """Open the target for reading. Raises NotFoundError."""

    @abstractmethod
    async def writer(self, session: Session) -> TargetWriter:
        """Open the target for writing. Raises ReadOnly, NotFoundError, UsageError for a ref that is not a branch."""

    @abstractmethod
    async def delete(self, session: Session, chosen: "removal.KeyChoice", expected: str | None) -> None:
        """Delete the chosen keys and print the revisions of the markers. Raises KeyNotFound, ConflictError."""

    @abstractmethod
    async def dumping(
        self, session: Session, filters: Sequence[str], *, history: bool, as_of: "kvctl.Moment | None"
    ) -> Callable[[BinaryIO], Awaitable["dumper.DumpSummary"]]:
        """Return a function that dumps matching keys to a file."""

    @abstractmethod
    async def load(
        self, session: Session, source: "input_file.LoadInput", options: "loader.LoadOptions"
    ) -> "bulk_writer.RowCounts":
        """Write the rows of an input."""
