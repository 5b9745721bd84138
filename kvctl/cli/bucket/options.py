"""Options for the settings of buckets, generated from their rows in `kvctl/kv/settings.py`."""

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Annotated, Any

from kvctl.cli.app.options import OptionGroup, duration, flag, live, one_of, option
from kvctl.errors import UsageError
from kvctl.kv import config
from kvctl.kv.settings import FIELDS, SETTINGS, Form, Republish, Resource, Setting
from kvctl.units import parse_limit

Given = Mapping[str, Any]
"""Settings that a command line gives, as fields of BucketConfig."""

_COMPLETIONS = {"cluster": live("placements"), "tags": live("placements", tags=True)}
_REPEATABLE = (Form.TEXTS, Form.PAIRS)


def setting_options(resource: Resource, *, edit: bool = False, only: Collection[str] = ()) -> OptionGroup:
    """Create the options for all or some settings of a resource: `settings: Annotated[Given, setting_options(...)]`."""
    rows = [row for row in SETTINGS.values() if resource in row.of and (not only or row.name in only)]
    options = {row.name: _option(row, edit=edit) for row in rows}
    return OptionGroup(options, partial(_given, rows, edit))


def clear_option(resource: Resource) -> Any:
    """Create the option for settings that an edit resets: `clear: Annotated[list[str] | None, clear_option(...)]`."""
    names = [row.name.replace("_", "-") for row in SETTINGS.values() if resource in row.of and row.clearable]
    return option(
        "--clear",
        "FIELD",
        "Reset a field to its default: an option's name, or `metadata.KEY`; repeatable",
        one_of(*names, "metadata.KEY", "placement"),
    )


def parse_pairs(texts: Iterable[str], *, repeated: bool = False, example: str = "owner=team-a") -> dict[str, str]:
    """Parse KEY=VALUE texts into a mapping; if keys may be `repeated`, the last one counts. Raises UsageError."""
    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"`{text}` is not KEY=VALUE", hint=f"Example: `{example}`")
        if name in pairs and not repeated:
            raise UsageError(f"`{name}` is given twice: `{name}={pairs[name]}` and `{text}`")
        pairs[name] = value
    return pairs


def _option(row: Setting, *, edit: bool) -> tuple[Any, Any]:
    """Return type and default of an option."""
    spelling = f"--{row.option_name}"
    help = f"{row.help}; repeatable" if row.form in _REPEATABLE else row.help
    if row.form is Form.FLAG:
        spelling += f"/--no-{row.option_name}" if edit and not row.part_of else ""
        return Annotated[bool | None, flag(spelling, help, show_default=False)], None
    if row.form is Form.DURATION:
        return Annotated[Any, duration(spelling, help)], None
    if row.form is Form.SIZE:
        return Annotated[Any, option(spelling, "SIZE", f"{help}, or `none`", parser=parse_limit)], None
    words = row.limits.get("enum")
    kind: Any = int if row.form is Form.INTEGER else list[str] if row.form in _REPEATABLE else str
    completion = one_of(*words) if words else _COMPLETIONS.get(row.name)
    return Annotated[kind | None, option(spelling, row.metavar, help, completion)], None


def _given(rows: Iterable[Setting], edit: bool, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings among option values. Raises UsageError for texts and values that are not valid."""
    found = {
        row.name: _PARSERS[row.form](value) if row.form in _PARSERS else value
        for row in rows
        if (value := values[row.name]) is not None
    }
    if found.get("republish_headers_only") and "republish" in found:
        del found["republish_headers_only"]
        found["republish"] = Republish(found["republish"].source, found["republish"].destination, headers_only=True)
    elif found.get("republish_headers_only") and not edit:
        raise UsageError("`--republish-headers-only` needs `--republish SRC=DEST`")
    config.edited({}, {name: value for name, value in found.items() if name in FIELDS})
    return found


def _route(text: str) -> Republish:
    source, equals, destination = text.partition("=")
    if not equals:
        raise UsageError(f"`{text}` is not SRC=DEST", hint="Example: `$KV.orders.>=copies.>`")
    return Republish(source, destination)


_PARSERS: Mapping[Form, Callable[[Any], Any]] = {Form.PAIRS: parse_pairs, Form.TEXTS: tuple, Form.ROUTE: _route}

Placement = Annotated[Given, setting_options("bucket", only=("replicas", "storage", "cluster", "first_revision"))]
"""Settings of a copy that may differ from the original's."""
