"""Flows that commands share: an edit, a creation, a confirmed deletion, a dry run, and the result of each."""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any

from kvctl.cli.app.session import Session
from kvctl.jetstream import api as jetstream_api
from kvctl.jetstream import config_diff, config_text, stream_info
from kvctl.phrases import joined
from kvctl.render.escapes import escape
from kvctl.render.fields import columns
from kvctl.render.terminal import paint
from kvctl.render.view import View, document
from kvctl.topology.hazards import hazards
from kvctl.topology.health import arrival
from kvctl.topology.plan import description
from kvctl.topology.survey import graph

_STYLES = {"create": "green", "change": "yellow", "delete": "red", "recreate": "red"}


def show_result(session: Session, row: dict[str, Any], text: str, *, name: str | None = None) -> None:
    """Print a result: as a sentence, or the row with `--output` or `--columns`.

    `-o name` prints the field `name`, by default the first.
    """
    if session.options.output or session.options.columns:
        session.show(document(row, name=name or next(iter(row))))
    else:
        session.result(text)


def show_creation(session: Session, what: str, row: dict[str, Any], *, created: bool, name: str | None = None) -> None:
    """Print the result of a creation of `what`, a kind and a name; or that it exists with this configuration."""
    text = f"Created {what}" if created else f"{what[:1].upper()}{what[1:]} already exists with this configuration"
    show_result(session, {**row, "changed": created}, text, name=name)


def show_sealed(session: Session, kind: str, name: str, *, changed: bool, dry_run: bool) -> None:
    """Print the result of `bucket seal` and `table seal`."""
    row, what = {"name": name, "sealed": True, "changed": changed}, f"{kind} `{name}`"
    if changed and dry_run:
        show_planned(session, "change", what, document(row, name="name"), [("sealed", "no → yes, permanently")])
    else:
        show_result(session, row, f"Sealed {what}" if changed else f"{kind.capitalize()} `{name}` is already sealed")


def show_planned(
    session: Session,
    action: str,
    what: str,
    view: View,
    fields: Sequence[tuple[str, str]] = (),
    remarks: Iterable[str] = (),
    needed: "Iterable[hazards.Hazard]" = (),
) -> None:
    """Print what a dry run found: as a plan does, or the view with `--output`; then the hazards.

    `what` is a kind and a name, `fields` and `remarks` are those of `change_lines`.
    """
    if session.options.output or session.options.columns:
        session.show(view)
    else:
        lines = change_lines(action, what, fields, remarks, colored=session.terminal.colored)
        session.paragraphs("".join(f"{line}\n" for line in lines))
    warn_of_hazards(session, needed)


def change_lines(
    action: str, what: str, fields: Sequence[tuple[str, str]], remarks: Iterable[str], *, colored: bool
) -> Iterator[str]:
    """Yield the lines of a change: its sign and what it changes, below them aligned fields, and effects."""
    sign = description.SIGNS[action]
    yield paint(escape(f"{sign} {what}"), _STYLES[action] if colored else "")
    widest = max((len(field) for field, _ in fields), default=0)
    yield from (f"    {escape(field):{widest}}  {escape(text)}" for field, text in fields)
    yield from (f"    {escape(text)}" for text in remarks)


def show_config(
    session: Session,
    what: str,
    config: dict[str, Any],
    needed: "Iterable[hazards.Hazard]" = (),
    *,
    live: "stream_info.StreamInfo | None" = None,
    schema: "config_text.Schema | None" = None,
    remarks: Iterable[str] = (),
) -> None:
    """Print the bucket or replica that a dry run would create, or make of `live`, and its hazards.

    With `schema` it is a plain stream or a consumer.
    """
    if schema is not None:
        lines = _lines(config_diff.differences({}, config, schema), new=True)
        show_planned(session, "create", what, document(config), lines)
        return
    change = description.of_stream(config, live)
    lines = _lines(description.differences(change), new=live is None)
    effects = [*description.remarks(change), *remarks]
    # A name that other commands take, not that of the stream.
    view = document({"name": change.name} if session.output == "name" else config)
    show_planned(session, str(change.action), what, view, lines, effects, needed)


def show_deletion(
    session: Session,
    what: str,
    row: dict[str, Any],
    effect: str,
    readers: "Iterable[graph.Dependent]" = (),
    *,
    name: str | None = None,
) -> None:
    """Print what a dry run would delete, and the streams that replicate from it."""
    remarks = [effect]
    for item in readers:
        known = item.upstream is not None
        remarks.append(f"{_reader(item)} replicates from it, and would stop" if known else _replicated("it", item))
    show_planned(session, "delete", what, document(row, name=name or next(iter(row))), remarks=remarks)


def warn_of_hazards(session: Session, needed: "Iterable[hazards.Hazard]") -> None:
    """Warn of the hazards that a change has to be forced for."""
    for hazard in needed:
        session.warn(f"{hazard.evidence}: needs `--force {hazard.name}`")


async def require_current(
    session: Session,
    api: "jetstream_api.Api",
    info: "stream_info.StreamInfo | None",
    force: Iterable[str] | None,
    *,
    dry_run: bool = False,
) -> None:
    """Warn of origins of a replica that cannot be read. Raises HazardRefused if it lacks entries of one that can."""
    if info is None:
        return
    found, doubts = await arrival.behind(api, info)
    for doubt in doubts:
        session.warn(doubt)
    if dry_run:
        warn_of_hazards(session, found)
    else:
        hazards.refuse(found, force, f"A copy of `{hazards.name_of(info['config'])}` would lack entries")


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
    if dry_run and not found and not session.options.output:
        session.result(empty)
        return
    if dry_run:
        view = _differences_view(found, empty, worded=session.output == "table")
        show_planned(session, "change", what, view, _lines(found), needed=needed)
        return
    options = session.options
    if found and not (options.output or options.columns or options.quiet):
        show_planned(session, "change", what, _differences_view(found, empty, worded=True), _lines(found))
    hazards.refuse(needed, force, refusal)
    if found:
        await apply()
    row |= {"changed": bool(found), "differences": [_plain(item) for item in found]}
    show_result(session, row, f"Changed {what}" if found else f"No changes to {what}", name=name)


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

    `simple` and `typed` are the texts of these questions; in a pipe, the hint names the ways out. Raises Cancelled,
    UsageError.
    """
    for item in readers:
        session.note(_replicated(f"`{name}`", item), always=True)
    if readers or replicates or confirm is not None:
        known = [item for item in readers if item.upstream is not None]
        first = joined(_reader(item) for item in known) if known and not replicates else ""
        hint = f"Add `--confirm {name}`{f', or delete {first} first' if first else ''}. {typed}"
        await session.confirm(typed, typed_name=name, confirmed=confirm, hint=hint)
    else:
        await session.confirm(simple, yes=yes)


def _differences_view(found: "Sequence[config_diff.Difference]", empty: str, *, worded: bool) -> View:
    rows = [_plain(item) for item in found]
    if worded:
        rows = [{**row, "before": item.words[0], "after": item.words[1]} for row, item in zip(rows, found, strict=True)]
    return View(columns=columns("field before after"), rows=rows, name="field", empty=empty)


def _lines(found: "Iterable[config_diff.Difference]", *, new: bool = False) -> list[tuple[str, str]]:
    return [line for item in found for line in description.difference_lines(item, new=new)]


def _plain(item: "config_diff.Difference") -> dict[str, Any]:
    return {"field": item.field, "before": item.before, "after": item.after}


def _replicated(name: str, item: "graph.Dependent") -> str:
    """Describe a replica of a bucket or a stream to a user who is about to delete that."""
    if item.upstream is None:
        return f"Stream `{item.node.stream}` does not answer and may replicate {name}"
    text = f"{item.node.kind.capitalize()} `{item.node.name}` replicates {name}"
    return text if item.last_revision is not None else f"{text} (offline)"


def _reader(item: "graph.Dependent") -> str:
    return f"{item.node.kind} `{item.node.name}`"
