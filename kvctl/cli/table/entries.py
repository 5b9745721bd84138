"""Commands of `kvctl table` on entries: put, get, exists, remove, update, keys, entries."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Annotated, Any, NamedTuple

from kvctl.cli import records
from kvctl.cli.app.command import command
from kvctl.cli.app.options import DryRun, argument, flag, live, number, option
from kvctl.cli.app.session import Session
from kvctl.cli.keys.arguments import Encoding, read_value, require_value
from kvctl.cli.table.views import ENTRIES, KEYS, entry_row, key_row, show_writes, write_row
from kvctl.errors import KeyNotFound
from kvctl.phrases import counted
from kvctl.render.escapes import text_of
from kvctl.render.fields import columns
from kvctl.render.view import Column, View, document
from kvctl.tables import batch_file, ranges, table
from kvctl.tables import changes as tables_changes
from kvctl.tables import keys as tables_keys

TableName = Annotated[str, argument("TABLE", "Name of the table", live("tables"))]
Key = Annotated[str, argument("KEY", "Key: text, `hex:...` or `base64:...`", live("table_keys"))]
Family = Annotated[str | None, option("--family", "F", "Key family; `''` is the empty family, not the absence of one")]
Leader = Annotated[bool, flag("--leader", "Read from the leader, which is always current")]
IfVersion = Annotated[
    str | None, option("--if-version", "V", "Required version of the entry; `not-exists` if it must not exist")
]


async def open_table(session: Session, name: str, *, dry_run: bool = False) -> "table.Table[bytes, bytes]":
    """Open the table. Raises UsageError, TableNotFound."""
    read_only = session.context.read_only and not dry_run
    return await table.Table.open((await session.client()).api, name, read_only=read_only)


NOT_FOUND = 3

Value = Annotated[str | None, argument("VALUE|-", "Value; `-` reads it from standard input")]
File = Annotated[str | None, option("--file -f", "FILE", "Read the value from a file")]
Keys = Annotated[list[str], argument("KEY...", "Keys: text, `hex:...` or `base64:...`")]


@command(
    "table put",
    examples=[
        "kvctl table put users alice '{\"age\": 33}'",
        "kvctl table put users hex:00ff - --family raw < file",
        'kvctl table put users alice \'{"age": 34}\' --if-version "$version"',
    ],
    see=["table put-if-absent", "table update", "table get"],
    prints=(records.TABLE_WRITE,),
)
async def put(
    session: Session,
    table: TableName,
    key: Key,
    value: Value = None,
    file: File = None,
    family: Family = None,
    if_version: IfVersion = None,
) -> None:
    """Write an entry.

    Prints the new version; in a pipe, nothing else. With --if-version, the entry is written only if it has this
    version. Otherwise the command exits with 4 and reports the current version.
    """
    condition = tables_changes.NO_VERSION if if_version is None else tables_changes.Version.parse(if_version)
    data, name = _checked(session, key, value, file, family), tables_keys.parse_key(key)
    target = await open_table(session, table)
    version = await target.replace(name, data, condition, family=family)
    show_writes(session, [write_row(family, name, version)], single=True)


@command(
    "table put-if-absent",
    examples=["kvctl table put-if-absent users alice '{}'"],
    see=["table put"],
    prints=(records.TABLE_WRITE,),
)
async def put_if_absent(
    session: Session, table: TableName, key: Key, value: Value = None, file: File = None, family: Family = None
) -> None:
    """Write an entry that must not exist.

    Prints its version. The command exits with 4 if the entry exists.
    """
    data, name = _checked(session, key, value, file, family), tables_keys.parse_key(key)
    target = await open_table(session, table)
    version = await target.put_if_absent(name, data, family=family)
    show_writes(session, [write_row(family, name, version)], single=True)


@command(
    "table get",
    examples=["kvctl table get users alice", "kvctl table get users alice -o json | jq -r .version"],
    see=["table get-all", "table entries"],
    prints=(records.TABLE_ENTRY,),
)
async def get(
    session: Session,
    table: TableName,
    key: Key,
    family: Family = None,
    encoding: Encoding = None,
    leader: Leader = False,
) -> None:
    """Read an entry.

    Prints the value: the exact bytes in a pipe, escaped and with a newline on a terminal. -o prints the complete entry
    with its version.
    """
    name = tables_keys.parse_key(key)
    opened = await open_table(session, table)
    entry = await opened.get(name, family=family, leader=leader)
    if entry is None:
        raise KeyNotFound(
            f"{tables_changes.named(family, name)} is not in table `{table}`",
            hint=f"List the keys with `kvctl table keys {table}`",
            confirmed=opened.confirmed,
        )
    if session.options.output is not None:
        session.show(document(entry_row(entry, encoding), *ENTRIES, tsv=records.TABLE_ENTRY.columns, name="key"))
    elif encoding == "base64":
        session.value(f"{text_of(entry.value, encoding)[0]}\n".encode())
    else:
        text_of(entry.value, encoding) if encoding else None
        session.value(entry.value)


@command(
    "table exists",
    examples=["kvctl table exists users alice && echo there"],
    see=["table get"],
    prints=(records.TABLE_EXISTS,),
)
async def exists(session: Session, table: TableName, key: Key, family: Family = None) -> int:
    """Check if an entry exists.

    Prints `true` or `false`; the exit code is 0 or 3.
    """
    name = tables_keys.parse_key(key)
    there = await (await open_table(session, table)).exists(name, family=family)
    text, how = text_of(name)
    row = {"key": text, "key_encoding": how, "family": family, "exists": there}
    session.show(document(row, *columns("key family exists"), tsv=records.TABLE_EXISTS.columns, name="exists"))
    return 0 if there else NOT_FOUND


@command(
    "table get-all",
    examples=["kvctl table get-all users alice bob", "kvctl table get-all users alice bob --family staff -o json"],
    see=["table get", "table entries"],
    prints=(records.TABLE_ENTRY,),
)
async def get_all(
    session: Session,
    table: TableName,
    keys: Keys,
    family: Family = None,
    encoding: Encoding = None,
    leader: Leader = False,
) -> int:
    """Read several entries, in the order given.

    In JSON, missing entries are null. In other formats they are left out, and the exit code is 3.
    """
    names = [tables_keys.parse_key(key) for key in keys]
    opened = await open_table(session, table)
    found = await opened.get_all(names, family=family, leader=leader)
    rows: list[Any] = [None if entry is None else entry_row(entry, encoding) for entry in found]
    with_nulls = session.output in ("json", "ndjson", "yaml")
    missing = [name for name, row in zip(names, rows, strict=True) if row is None]
    shown = rows if with_nulls else [row for row in rows if row]
    session.show(View(columns=ENTRIES, tsv=records.TABLE_ENTRY.columns, rows=shown, name="key", light=True))
    if missing and not with_nulls:
        listed = ", ".join(tables_changes.named(family, name) for name in missing[:10])
        more = " and more" if len(missing) > 10 else ""
        raise KeyNotFound(f"Not in table `{table}`: {listed}{more}", confirmed=opened.confirmed)
    return 0


@command(
    "table remove",
    examples=["kvctl table remove users alice", 'kvctl table remove users alice --if-version "$version"'],
    see=["table delete", "table update"],
    prints=(records.TABLE_WRITE,),
)
async def remove(
    session: Session, table: TableName, key: Key, family: Family = None, if_version: IfVersion = None
) -> None:
    """Remove an entry.

    Removing a missing entry succeeds and writes nothing, unless --if-version is given.
    """
    condition = tables_changes.NO_VERSION if if_version is None else tables_changes.Version.parse(if_version)
    name = tables_keys.parse_key(key)
    await (await open_table(session, table)).remove(name, condition, family=family)
    if session.options.output is not None:
        show_writes(session, [write_row(family, name, None)], single=True)
    else:
        session.note(f"Removed {tables_changes.named(family, name)}")


@command("table rm", examples=["kvctl table rm users alice"], see=["table remove"], hidden=True)
async def rm(session: Session, table: TableName, key: Key, family: Family = None, if_version: IfVersion = None) -> None:
    """Remove an entry, as `table remove` does.

    To delete a table, use `table delete`.
    """
    await remove(session, table, key, family, if_version)


@command(
    "table update",
    examples=["kvctl table update users -f changes.yaml", "kvctl table update users -f - < changes.ndjson"],
    see=["table put", "table remove", "help tables"],
    prints=(records.TABLE_WRITE,),
)
async def update(
    session: Session,
    table: TableName,
    file: Annotated[str, option("--file -f", "FILE", "File of changes, `-` for standard input")],
    dry_run: DryRun = False,
) -> None:
    """Write and remove up to 1,000 entries in one atomic batch.

    The file is NDJSON (one object a line) or a YAML list. Each change has `insert` (the entry must not exist), `put` or
    `remove` with the key. Further fields are `value`, `encoding: base64` for binary values, `key_encoding: base64`,
    `family`, and `version` for a condition. If conditions fail, the command exits with 4 and names them all.

    Prints the versions in the order of the file, with an empty line for each removal.
    """
    source = "standard input" if file == "-" else file
    changes = batch_file.read_changes(session.read_input(file), source)
    target = await open_table(session, table, dry_run=dry_run)
    if dry_run:
        await target.check(changes)
        session.note(f"The conditions hold; {counted(len(changes), 'change')} would be made", always=True)
        if session.options.output:
            show_writes(session, [write_row(change.family, change.key, None) for change in changes], single=False)
        return
    versions = await target.update(changes)
    rows = [write_row(change.family, change.key, version) for change, version in zip(changes, versions, strict=True)]
    show_writes(session, rows, single=False)


def _checked(session: Session, key: str, value: str | None, file: str | None, family: str | None) -> bytes:
    """Check the key and read the value. Raises UsageError."""
    require_value(value, file)
    tables_keys.check_key(family, tables_keys.parse_key(key))
    data: Any = read_value(session, value, file)
    assert isinstance(data, bytes)
    return data


Prefix = Annotated[str | None, option("--prefix", "K", "Prefix of the keys")]
From = Annotated[str | None, option("--from", "K", "First key")]
To = Annotated[str | None, option("--to", "K", "Last key, inclusive")]
Limit = Annotated[int | None, number("--limit", "Maximum number of entries; prints a token to resume from")]
After = Annotated[str | None, option("--after", "TOKEN", "Resume from a previous listing's token")]


@command(
    "table keys",
    examples=[
        "kvctl table keys users",
        "kvctl table keys users --family staff --prefix a",
        'kvctl table keys users --limit 100 --after "$token" -o json',
    ],
    see=["table entries", "help tables"],
    prints=(records.TABLE_KEY, records.TABLE_KEY_PAGE, records.TABLE_NEXT),
)
async def keys(
    session: Session,
    table: TableName,
    family: Family = None,
    prefix: Prefix = None,
    start: From = None,
    end: To = None,
    limit: Limit = None,
    after: After = None,
) -> None:
    """List keys with their versions, in byte order.

    Keys without a family come first, then one family after the other. If --limit ends the listing early, a token is
    printed, in JSON as `next`. Pass it to --after, now or later, with the same family, prefix and bounds.
    """
    shape = _Shape("keys", KEYS, records.TABLE_KEY.columns, key_row)
    await _scan(session, table, shape, _range(family, prefix, start, end), limit, after, values=False)


@command(
    "table entries",
    examples=["kvctl table entries users", "kvctl table entries users --from a --to b -o ndjson"],
    see=["table keys", "help tables"],
    prints=(records.TABLE_ENTRY, records.TABLE_ENTRY_PAGE, records.TABLE_NEXT),
)
async def entries(
    session: Session,
    table: TableName,
    family: Family = None,
    prefix: Prefix = None,
    start: From = None,
    end: To = None,
    limit: Limit = None,
    after: After = None,
    encoding: Encoding = None,
) -> None:
    """List entries, in byte order of their keys.

    An entry that exists during the complete listing appears exactly once; its value may be newer than the start of the
    listing. --limit and --after work as in `table keys`.
    """
    shape = _Shape("entries", ENTRIES, records.TABLE_ENTRY.columns, lambda entry: entry_row(entry, encoding))
    await _scan(session, table, shape, _range(family, prefix, start, end), limit, after, values=True)


class _Shape(NamedTuple):
    """Output shape of a listing: JSON field, columns of tables and of tsv, and row of an entry."""

    field: str
    columns: Sequence[Column]
    tsv: Sequence[str]
    row: Callable[[Any], dict[str, Any]]


async def _scan(
    session: Session, name: str, shape: _Shape, of: Any, limit: int | None, after: str | None, *, values: bool
) -> None:
    table = await open_table(session, name)
    token: str | None = None

    async def batches() -> AsyncGenerator[list[dict[str, Any]], None]:
        nonlocal token
        async with aclosing(table.pages(of, values=values, after=after, limit=limit)) as pages:
            async for page in pages:
                token = page.next
                yield [shape.row(entry) for entry in page.entries]
        if token is not None and session.output == "ndjson":
            yield [{"next": token}]

    if session.output in ("json", "yaml"):
        rows = [row async for batch in batches() for row in batch]
        session.show(View(columns=shape.columns, rows=[{shape.field: rows, "next": token}], single=True))
        return
    await session.stream(View(columns=shape.columns, tsv=shape.tsv, name="key", empty="No entries"), batches())
    if token is not None and session.output != "ndjson":
        session.note(f"More entries follow; resume with --after {token}", always=True)


def _range(family: str | None, prefix: str | None, start: str | None, end: str | None) -> Any:
    def bound(text: str | None) -> bytes | None:
        return None if text is None else tables_keys.parse_key(text)

    of = ranges.Families.ALL if family is None else family
    return ranges.Range(of, prefix=bound(prefix) or b"", start=bound(start), end=bound(end))
