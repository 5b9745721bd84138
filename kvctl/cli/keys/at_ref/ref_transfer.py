"""`load` and `dump` at a ref of a repository."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, BinaryIO

from kvctl.cli.app.session import Session
from kvctl.cli.repo.options import open_branch, parse_at, parse_branch

if TYPE_CHECKING:
    from kvctl.kv.dump.dumper import Dumped
    from kvctl.kv.load.bulk_load import LoadOptions
    from kvctl.kv.load.bulk_writer import RowCounts
    from kvctl.kv.load.input_file import LoadInput


async def dumping(session: Session, place: str, filters: Sequence[str]) -> Callable[[BinaryIO], Awaitable["Dumped"]]:
    """Return a function that writes `dump NAME@REF` to a file."""
    from kvctl.versions.repositories import opened
    from kvctl.versions.transfer import ref_dump

    at = parse_at(place)
    found, repository = await opened((await session.client()).api, at.repository)

    async def write(file: BinaryIO) -> "Dumped":
        with session.progress(f"Dumping {at}") as progress:
            return await ref_dump.dump(
                repository, at.repository, found.info["config"], at.ref, file, filters, advance=progress.advance
            )

    return write


async def load(session: Session, place: str, source: "LoadInput", options: "LoadOptions") -> "RowCounts":
    """Run `load NAME@BRANCH`."""
    from kvctl.versions.transfer import branch_load

    at = parse_branch(place)
    repository = await open_branch(session, at, write=not options.dry_run)
    return await branch_load.load(repository, at.ref, source, options)
