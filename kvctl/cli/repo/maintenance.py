"""`kvctl repo annotate` and `gc`."""

from typing import Annotated, Any

import typer

from kvctl.cli.app.command import command
from kvctl.cli.app.options import DryRun, Yes
from kvctl.cli.app.session import Session
from kvctl.cli.records import ANNOTATION, COLLECTION
from kvctl.cli.repo.options import AtRef, Name, open_repository, parse_at, parse_name
from kvctl.kv import names
from kvctl.render.fields import columns
from kvctl.render.view import View, document
from kvctl.units import format_time


@command(
    "repo annotate",
    examples=["kvctl repo annotate config@main", "kvctl repo annotate config@v1 'app.>' -o ndjson"],
    see=["repo log", "history"],
    prints=(ANNOTATION,),
)
async def annotate(
    session: Session,
    at: AtRef,
    filter: Annotated[
        str, typer.Argument(metavar="FILTER", help="Filter: `*` matches one token, `>` at the end any number")
    ] = ">",
) -> None:
    """Show the last commit that changed each key.

    A key with a staged change has no commit yet.
    """
    place = parse_at(at)
    names.check_filter(filter)
    repository = await open_repository(session, place.repository)
    rows: list[dict[str, Any]] = []
    for found in await repository.annotate(place.ref, filter):
        commit = found.commit
        rows.append({
            "key": found.key,
            "commit": found.id,
            "author": commit.author if commit else None,
            "created": format_time(commit.created_ns) if commit else None,
            "message": commit.message if commit else None,
        })  # fmt: skip
    shown = columns("key commit author created message", created="Age")
    session.show(View(columns=shown, rows=rows, name="key", empty="No keys"))


@command(
    "repo gc",
    examples=["kvctl repo gc config --dry-run", "kvctl repo gc config --yes"],
    see=["branch delete"],
    prints=(COLLECTION,),
)
async def gc(session: Session, name: Name, yes: Yes = False, dry_run: DryRun = False) -> None:
    """Remove data that no branch or tag reaches.

    Removes commits of deleted branches and of `reset --hard`, objects that no commit uses, and staged changes that were
    committed or dropped. Other clients may write and commit during the collection. Data that is reachable, or that a
    running commit uses, is kept.
    """
    parse_name(name)
    if not dry_run:
        await session.confirm(f"Remove data that no branch or tag of `{name}` reaches?", yes=yes)
    repository = await open_repository(session, name, write=not dry_run)
    with session.progress(f"Collecting garbage of {name}"):
        found = await repository.gc(dry_run=dry_run)
    row = {"name": name, "commits": found.commits, "objects": found.objects, "epochs": found.epochs}
    session.show(document(row, *columns("name commits objects epochs"), tsv=COLLECTION.columns))
    if dry_run:
        session.note("Nothing was removed")
