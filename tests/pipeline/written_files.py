"""Files in the staging folder of an export, as its tasks report them."""

from pathlib import Path

from kvctl.documents import checksum
from kvctl.pipeline.files.export_files import data_files
from kvctl.pipeline.files.export_writer import WrittenFile


def written_files(staging: Path) -> list[WrittenFile]:
    """The files with JSON lines below the folder."""
    found = [(path, checksum.of_file(path)) for path in data_files(staging)]
    return [
        WrittenFile(str(path.relative_to(staging)), path.read_bytes().count(b"\n"), whole.size, whole.sha256)
        for path, whole in found
    ]
