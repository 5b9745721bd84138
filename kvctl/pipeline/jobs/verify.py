"""Verify an export: its files against the manifest, and what they hold against a live bucket."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from kvctl.pipeline import files
from kvctl.pipeline.files import Advance, Damage
from kvctl.pipeline.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Verified:
    """What a verification found."""

    path: str
    manifest: Manifest
    damage: list[Damage]
    seconds: float

    @property
    def whole(self) -> bool:
        """Whether every file is as it was written, and none is missing or new."""
        return not self.damage


def verify(folder: Path, advance: Advance = lambda _: None) -> Verified:
    """Compare the files of an export with its manifest; needs no Spark.

    Raises NotFoundError where there is no manifest, ConflictError where it is damaged.
    """
    begun = time.monotonic()
    manifest = files.read_manifest(folder)
    found = files.damages(folder, manifest, advance)
    return Verified(str(folder), manifest, found, time.monotonic() - begun)
