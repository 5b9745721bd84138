"""Flows that commands share: an edit, a creation, a confirmed deletion, a dry run, and the result of each."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from kvctl.cli.app.session import Session
from kvctl.jetstream import config_diff
from kvctl.render.fields import columns
from kvctl.render.view import View, document
from kvctl.topology.hazards import hazards
from kvctl.topology.survey import graph


def show_result(
    session: Session, row: dict[str, Any], text: str, *, always: bool = False, name: str | None = None
) -> None:
    """Print a result: the row with `--output`, else a note on a terminal, with `always` also in a pipe.

    `-o name` prints the field `name`, by default the first.
    """
    if session.options.output:
        session.show(document(row, name=name or next(iter(row))))
    else:
        session.note(text, always=always)


def show_creation(session: Session, what: str, row: dict[str, Any], *, created: bool, name: str | None = None) -> None:
    """Print the result of a creation of `what`, a kind and a name; or that it exists with this configuration."""
    text = f"Created {what}" if created else f"{what[:1].upper()}{what[1:]} already exists with this configuration"
    show_result(session, {**row, "changed": created}, text, always=not created, name=name)


def show_sealed(session: Session, kind: str, name: str, *, changed: bool, dry_run: bool) -> None:
    """Print the result of `bucket seal` and `table seal`."""
    done = f"Would seal {kind} `{name}`" if dry_run else f"Sealed {kind} `{name}`"
    text = done if changed else f"{kind.capitalize()} `{name}` is already sealed"
    show_result(session, {"name": name, "sealed": True, "changed": changed}, text, always=dry_run or not changed)


def show_config(session: Session, config: Mapping[str, Any], needed: "Iterable[hazards.Hazard]" = ()) -> None:
    """Print the configuration that a dry run would write, as JSON unless `--output` is given, and its hazards."""
    if session.options.output is None:
        session.output = "json"
    session.show(document(config))
    warn_of_hazards(session, needed)


def warn_of_hazards(session: Session, needed: "Iterable[hazards.Hazard]") -> None:
    """Warn of the hazards that a change has to be forced for."""
    for hazard in needed:
        session.warn(f"{hazard.evidence}: needs `--force {hazard.name}`")


async def edit(
    session: Session,
    what: str,
    row: dict[str, Any],
    found: "Sequence[config_diff.Difference]",
    apply: Callable[[], Awaitable[Any]],
    *,
    dry_run: bool,
    needed: "Sequence[hazards.Hazard]" = (),
    force: Iterable[str] | None = None,
    refusal: str = "",
    empty: str = "Nothing would change",
    name: str | None = None,
) -> None:
    """Show the differences of an edit, refuse its hazards, apply it, and print the row of the result.

    `what` is a kind and a name. Raises HazardRefused with `refusal`.
    """
    if dry_run:
        session.show(_differences_view(found, empty, worded=session.output == "table"))
        warn_of_hazards(session, needed)
        return
    for difference in found:
        session.note(str(difference), always=True)
    hazards.refuse(needed, force, refusal)
    if found:
        await apply()
    row |= {"changed": bool(found), "differences": [_plain(item) for item in found]}
    show_result(session, row, f"Changed {what}" if found else f"No changes to {what}", always=not found, name=name)


async def confirm_named(
    session: Session,
    name: str,
    readers: "Sequence[graph.Dependent]",
    *,
    yes: bool,
    confirm: str | None,
    simple: str,
    typed: str,
    replicates: bool = False,
) -> None:
    """Ask before a deletion: for the name if other streams replicate from it, or with `replicates`, else y/N.

    `simple` and `typed` are the texts of these questions. Raises Cancelled, UsageError.
    """
    for item in readers:
        session.note(_replicated(name, item), always=True)
    if readers or replicates or confirm is not None:
        await session.confirm(typed, typed_name=name, confirmed=confirm)
    else:
        await session.confirm(simple, yes=yes)


def _differences_view(found: "Sequence[config_diff.Difference]", empty: str, *, worded: bool) -> View:
    rows = [_plain(item) for item in found]
    if worded:
        rows = [{**row, "before": item.words[0], "after": item.words[1]} for row, item in zip(rows, found, strict=True)]
    return View(columns=columns("field before after"), rows=rows, name="field", empty=empty)


def _plain(item: "config_diff.Difference") -> dict[str, Any]:
    return {"field": item.field, "before": item.before, "after": item.after}


def _replicated(name: str, item: "graph.Dependent") -> str:
    """Describe a replica of a bucket or a stream to a user who is about to delete that."""
    if item.upstream is None:
        return f"Stream `{item.node.stream}` does not answer and may replicate `{name}`"
    text = f"{item.node.kind.capitalize()} `{item.node.name}` replicates `{name}`"
    return text if item.last_revision is not None else f"{text} (offline)"
