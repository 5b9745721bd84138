"""Manifests and the files they name: writing, and detection of changes."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from kvctl.errors import ConflictError, NotFoundError, UsageError
from kvctl.pipeline.files import export_files, target_folder
from kvctl.pipeline.files.export_manifest import MANIFEST, ExportManifest, Part, decode, encode
from tests.pipeline.written_files import written_files

ROWS = [b'{"key": "a"}\n', b'{"key": "b"}\n{"key": "c"}\n', b'{"key": "d"}\n{"key": "e"}\n{"key": "f"}\n']


def manifest_of(parts: list[Part]) -> ExportManifest:
    return ExportManifest(
        bucket="ORDERS",
        incarnation="2026-11-21T00:00:00Z",
        config={"name": "KV_ORDERS"},
        cut=17,
        mode="latest",
        filters=("a.>",),
        format="parquet",
        created="2026-11-21T00:00:01Z",
        rows=sum(part.rows for part in parts),
        bytes=sum(part.bytes for part in parts),
        files=tuple(parts),
    )


@pytest.fixture
def export(tmp_path):
    """An export of three files."""
    folder = tmp_path / "export"
    with target_folder.taken(folder) as staging:
        for number, data in enumerate(ROWS):
            staging.mkdir(parents=True, exist_ok=True)
            (staging / f"part-0000{number}-4e2d-c000.parquet").write_bytes(data)
            (staging / f".part-0000{number}-4e2d-c000.parquet.crc").write_bytes(b"crc")
        staged = target_folder.staged(staging, written_files(staging))
        target_folder.take_over(folder, staged, manifest_of([file.part for file in staged]))
    return folder


def test_an_export_is_its_parts_and_its_manifest(export):
    manifest = export_files.read_manifest(export)
    assert [(part.name, part.rows, part.bytes) for part in manifest.files] == [
        ("part-00000.parquet", 1, 13),
        ("part-00001.parquet", 2, 26),
        ("part-00002.parquet", 3, 39),
    ]
    found = {str(path.relative_to(export)) for path in export.rglob("*") if path.is_file()}
    assert found == {MANIFEST, *(part.name for part in manifest.files)}
    assert export_files.damages(export, manifest) == []


def test_files_in_linked_folders_are_data_as_they_are_to_spark(export, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "below").mkdir(parents=True)
    (elsewhere / "below" / "part-00000.parquet").write_bytes(ROWS[0])
    (elsewhere / "again").symlink_to(elsewhere)
    (export / "linked").symlink_to(elsewhere)
    found = {str(path.relative_to(export)) for path in export_files.data_files(export)}
    assert "linked/below/part-00000.parquet" in found
    assert [item.file for item in export_files.damages(export, export_files.read_manifest(export))] == [
        "linked/below/part-00000.parquet"
    ]


def test_manifest_round_trips():
    manifest = replace(manifest_of([Part("part-00000.parquet", 13, 1, "00" * 32)]), newer=3)
    assert decode(encode(manifest), "x") == manifest
    assert not manifest.exact


def flip(folder: Path) -> None:
    path = folder / "part-00001.parquet"
    data = bytearray(path.read_bytes())
    data[7] ^= 1
    path.write_bytes(data)


def swap(folder: Path) -> None:
    first, second = folder / "part-00000.parquet", folder / "part-00001.parquet"
    first.rename(folder / "between")
    second.rename(first)
    (folder / "between").rename(second)


def replace_by_same_size(folder: Path) -> None:
    (folder / "part-00000.parquet").write_bytes(b'{"key": "z"}\n')


DAMAGES = {
    "flipped": (flip, {("part-00001.parquet", "changed")}),
    "replaced": (replace_by_same_size, {("part-00000.parquet", "changed")}),
    "truncated": (lambda folder: os.truncate(folder / "part-00000.parquet", 5), {("part-00000.parquet", "truncated")}),
    "emptied": (lambda folder: os.truncate(folder / "part-00000.parquet", 0), {("part-00000.parquet", "truncated")}),
    "appended": (
        lambda folder: (folder / "part-00000.parquet").open("ab").write(b"{}\n"),
        {("part-00000.parquet", "longer")},
    ),
    "removed": (lambda folder: (folder / "part-00002.parquet").unlink(), {("part-00002.parquet", "missing")}),
    "added": (lambda folder: (folder / "part-9.parquet").write_bytes(b"{}\n"), {("part-9.parquet", "extra")}),
    "added below": (
        lambda folder: ((folder / "below").mkdir(), (folder / "below/part-9.parquet").write_bytes(b"")),
        {("below/part-9.parquet", "extra")},
    ),
    "swapped": (swap, {("part-00000.parquet", "longer"), ("part-00001.parquet", "truncated")}),
    "a folder in its place": (
        lambda folder: ((folder / "part-00000.parquet").unlink(), (folder / "part-00000.parquet").mkdir()),
        {("part-00000.parquet", "unreadable")},
    ),
}


@pytest.mark.guarantee("pipeline-23")
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found_and_named(damage, export):
    do, expected = DAMAGES[damage]
    do(export)
    manifest = export_files.read_manifest(export)
    found = {(item.file, item.problem) for item in export_files.damages(export, manifest)}
    assert found == expected
    with pytest.raises(ConflictError, match=sorted(expected)[0][0]):
        export_files.require_whole(export, manifest)


@pytest.mark.parametrize("bit", range(0, 8 * 1500, 997))
def test_changed_manifest_is_refused(bit, export):
    path = export / MANIFEST
    data = bytearray(path.read_bytes())
    data[bit // 8 % len(data)] ^= 1 << bit % 8
    path.write_bytes(data)
    with pytest.raises(ConflictError):
        export_files.read_manifest(export)


def test_edited_manifest_is_refused_despite_valid_fields(export):
    path = export / MANIFEST
    document = json.loads(path.read_bytes())
    document["files"].pop()
    path.write_text(json.dumps(document))
    with pytest.raises(ConflictError, match=r"`_manifest.json` has been changed"):
        export_files.read_manifest(export)


def test_a_newer_manifest_is_refused_by_its_version(export):
    path = export / MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "version": 2}))
    with pytest.raises(ConflictError, match="has version 2, but this kvctl supports 1"):
        export_files.read_manifest(export)


@pytest.mark.parametrize("name", ["/etc/passwd", "../part.json", "a//b", "./a"])
def test_a_manifest_names_no_files_elsewhere(name):
    with pytest.raises(ConflictError, match="names the file"):
        decode(encode(manifest_of([Part(name, 1, 1, "00")])), "x")


def test_folder_without_a_manifest_is_not_an_export(export):
    (export / MANIFEST).unlink()
    with pytest.raises(ConflictError, match="is not a complete export"):
        export_files.read_manifest(export)
    with pytest.raises(NotFoundError, match="does not exist"):
        export_files.read_manifest(export / "nowhere")


def test_interrupted_export_leaves_the_previous_one(export):
    def break_off() -> None:
        with target_folder.taken(export) as staging:
            staging.mkdir(parents=True)
            (staging / "part-0.parquet").write_bytes(b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        break_off()
    assert export_files.damages(export, export_files.read_manifest(export)) == []


def test_failed_export_leaves_no_folder(tmp_path):
    with pytest.raises(ZeroDivisionError), target_folder.taken(tmp_path / "new"):
        raise ZeroDivisionError
    assert not (tmp_path / "new").exists()


def test_concurrent_export_into_the_same_folder_is_refused(export):
    with (
        target_folder.taken(export),
        pytest.raises(ConflictError, match="Another export is being written"),
        target_folder.taken(export),
    ):
        pass


def test_non_empty_folder_requires_overwrite(export, tmp_path, monkeypatch):
    with pytest.raises(ConflictError, match="contains an export"):
        target_folder.check_vacant(export, overwrite=False)
    target_folder.check_vacant(export, overwrite=True)
    target_folder.check_vacant(tmp_path / "new", overwrite=False)
    (tmp_path / "empty").mkdir()
    target_folder.check_vacant(tmp_path / "empty", overwrite=False)
    with pytest.raises(ConflictError, match="not a complete export"):
        target_folder.check_vacant(tmp_path, overwrite=False)
    with pytest.raises(UsageError, match="is not a folder"):
        target_folder.check_vacant(export / MANIFEST, overwrite=True)
    monkeypatch.chdir(export)
    with pytest.raises(UsageError, match="Refusing to empty"):
        target_folder.check_vacant(tmp_path, overwrite=True)


def test_removed_files_are_counted(export):
    removed = target_folder.occupants(export)
    assert (removed.files, removed.whole) == (4, True)
    (export / MANIFEST).unlink()
    assert target_folder.occupants(export) == target_folder.RemovedFiles(3, 78, False)


def test_url_is_refused_as_a_folder():
    with pytest.raises(UsageError, match="is not a path"):
        export_files.folder_of("s3://bucket/export")
