"""Damaged tables are named as that, whatever was changed: data files, a manifest, a Delta log or its checkpoint.

Each run changes one file of a table that was written once. The table is then refused with exit code 4, or its damage is
found, or its rows are those that were written. Nothing else: no traceback, and no row is silently missing.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kvctl.documents import checksum
from kvctl.errors import KvctlError
from kvctl.pipeline.jobs.export import table_schema
from kvctl.pipeline.read.offsets import Offset
from kvctl.pipeline.tables import file_rows, stored_table
from kvctl.pipeline.tables.delta import LOG, KvTable
from kvctl.pipeline.tables.storage import TablePlace
from kvctl.pipeline.tables.stored_table import DELTA, MANIFEST, PARQUET
from tests.mutation import mutated_bytes, mutated_document
from tests.pipeline.tables.test_stored_table import LIFE, batch, origin_of, stored, written

RUNS = 100
"""Changes of the default run."""
OUTSIDE = "outside.parquet"
"""A file beside the table's folder, which no table may read."""
NAMES = (f"../{OUTSIDE}", f"..%2F{OUTSIDE}", f"%2e%2e/{OUTSIDE}", f"a/../../{OUTSIDE}", f"ABOVE/{OUTSIDE}",
    f"file://ABOVE/{OUTSIDE}", f"./../{OUTSIDE}", "", "_x", "x\0y", "\ud800", "x/" * 3000)  # fmt: skip
SECRET = 777


@dataclass(frozen=True)
class Example:
    """A table as it was written, and its rows."""

    kind: str
    folder: Path
    rows: Counter[str]


def rows_of(place: TablePlace) -> Counter[str]:
    """All rows of a table of kvctl that has no damage."""
    table = stored_table.open_table(place)
    stored_table.require_whole(table)
    columns = [name for name in ("key", "value", "revision", "operation") if name in table.origin.columns]
    found = [each for share in file_rows.shares(table) for each in file_rows.read_share(share, columns)]
    return Counter(repr(row) for each in found for row in each.to_pylist())


def rows_of_others(place: TablePlace) -> Counter[str]:
    """All rows of a table from elsewhere."""
    assert file_rows.columnar_format(place) == DELTA
    table = KvTable.find(place)
    assert table is not None
    with place.explained("read"), suppress(UnicodeDecodeError):  # a text of others need not be one
        return Counter(repr(row) for row in table.dataset().to_table().to_pylist())
    return Counter()


def capture(folder: Path) -> None:
    """The table of a capture: versions with files of kvctl and of delta-rs, and, in between, a checkpoint."""
    place = TablePlace(str(folder))
    origin = origin_of(kind="capture", cut=None, mode="changes", columns=("key", "value", "revision", "operation"))
    table = KvTable.create(place, table_schema(), origin, offset=Offset(0, LIFE, 0, 0))
    for number in (1, 2):
        table.append(written(place, batch(number)).parts, Offset(number, LIFE, 0, 0))
    table.compact(timedelta(days=7))
    table.append(written(place, batch(3)).parts, Offset(3, LIFE, 0, 0))


def latest(folder: Path) -> None:
    """The table of a capture in mode latest, all files of which delta-rs wrote."""
    place = TablePlace(str(folder))
    origin = origin_of(kind="capture", cut=None, mode="latest", columns=("key", "value", "revision", "operation"))
    table = KvTable.create(place, table_schema(), origin, offset=Offset(0, LIFE, 0, 0))
    for number in (1, 2):
        rows = pa.Table.from_batches([batch(2 * number - 1, 2 * number)])
        table.merge(rows, Offset(2 * number, LIFE, 0, 0), keep_deleted=False)


@pytest.fixture(scope="module")
def examples(tmp_path_factory) -> list[Example]:
    from deltalake import write_deltalake

    above = tmp_path_factory.mktemp("tables")
    columns = ("key", "value", "revision", "operation")
    for format in (DELTA, PARQUET):
        stored(above / format, format, [1], [2, 3], [4, 5, 6], columns=columns)
    capture(above / "capture")
    latest(above / "latest")
    write_deltalake(above / "others", batch(1, 2))
    write_deltalake(above / "others", batch(3), mode="append")
    found = []
    for folder in sorted(above.iterdir()):
        read = rows_of_others if folder.name == "others" else rows_of
        found.append(Example(folder.name, folder, read(TablePlace(str(folder)))))
    assert [sum(one.rows.values()) for one in found] == [3, 6, 4, 3, 6]
    return found


def change(folder: Path, chance: random.Random) -> tuple[str, str]:
    """Change one file of the table, and say which and how."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    (path,) = chance.choices(files, [4 if path.suffix == ".json" else 1 for path in files])
    how = chance.choice(
        ("removed", "linked", "a folder", "a pipe", "emptied", "bytes", *["lines"] * 3, *["document"] * 3)
    )
    data = path.read_bytes()
    if how == "removed":
        path.unlink()
    elif how == "linked":
        path.rename(folder.parent / "moved")
        path.symlink_to(folder.parent / "moved")
    elif how in ("a folder", "a pipe"):
        path.unlink()
        (path.mkdir if how == "a folder" else partial(os.mkfifo, path))()
    elif how == "emptied":
        path.write_bytes(b"")
    elif how == "bytes" or path.suffix == ".parquet" or path.name == "_last_checkpoint":
        path.write_bytes(mutated_bytes(data, chance))
    else:
        changed = changed_manifest(data, chance) if path.name == MANIFEST else changed_log(data, chance, how == "lines")
        path.write_bytes(changed.replace(b"ABOVE", bytes(folder.parent)))
    return str(path.relative_to(folder)), how


def changed_manifest(data: bytes, chance: random.Random) -> bytes:
    """A changed manifest whose checksum fits: whoever changes a file can compute it, too."""
    document = json.loads(data)
    del document["checksum"]
    if chance.random() < 0.3:
        chance.choice(document["files"])["name"] = chance.choice(NAMES)
    else:
        document = mutated_document(document, chance)
    try:
        return json.dumps({**document, "checksum": checksum.of_document(document)}).encode()
    except (ValueError, TypeError):
        return json.dumps(document).encode()


def changed_log(data: bytes, chance: random.Random, lines: bool) -> bytes:
    """A changed version of a Delta log: without a line, with one twice or elsewhere, or with other content in one."""
    found = data.splitlines()
    at = chance.randrange(len(found))
    if lines:
        kind = chance.choice(("removed", "twice", "shuffled", "cut"))
        if kind == "removed":
            del found[at]
        elif kind == "twice":
            found.append(found[at])
        elif kind == "shuffled":
            chance.shuffle(found)
        else:
            found[at] = mutated_bytes(found[at], chance)
        return b"".join(line + b"\n" for line in found)
    action = json.loads(found[at])
    if "add" in action and chance.random() < 0.5:
        action["add"][chance.choice(("path", "stats", "size"))] = chance.choice((*NAMES, 10**30, -1, None, "{}"))
    else:
        action = mutated_document(action, chance)
    found[at] = json.dumps(action).encode()
    return b"".join(line + b"\n" for line in found)


def may_differ(kind: str, file: str, how: str, rows: Counter[str], written: Counter[str]) -> bool:
    """True for changes that nobody can notice.

    Tables of others have no checksums. A manifest whose checksum fits is another one. Without its last versions, the
    log of a capture is an earlier one.
    """
    if kind in ("capture", "latest"):
        return file.startswith(LOG) and how != "emptied" and not rows - written
    return kind == "others" or file == MANIFEST


@pytest.mark.oracle
@pytest.mark.guarantee("pipeline-23", by="oracle")
def test_damaged_tables_are_refused_or_complete(examples, tmp_path, seed, steps):
    for number in range(steps(RUNS)):
        chance = random.Random(seed * 1_000_003 + number)
        example = chance.choice(examples)
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        folder = tmp_path / "run" / "table"
        shutil.copytree(example.folder, folder)
        pq.write_table(pa.Table.from_batches([batch(SECRET)]), folder.parent / OUTSIDE)
        file, how = change(folder, chance)
        shown = f"--seed {seed}, run {number}: {example.kind}, {file}, {how}"
        read = rows_of_others if example.kind == "others" else rows_of
        try:
            rows = read(TablePlace(str(folder)))
        except KvctlError as error:
            refused = error.exit_code
        except BaseException as error:
            raise AssertionError(shown) from error
        else:
            refused = 0
            assert not any(f"k{SECRET}" in row for row in rows), shown
            assert rows == example.rows or may_differ(example.kind, file, how, rows, example.rows), (shown, rows)
        assert refused in (0, 4), shown
