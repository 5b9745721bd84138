"""Verify an export: its files against the manifest, and its rows against a live bucket."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from kvctl.errors import HistoryLost
from kvctl.jetstream import streams
from kvctl.kv.maintenance.copy_bucket import DifferenceKind, KeyDifference
from kvctl.pipeline import worker_connection
from kvctl.pipeline.files import contents, export_files, file_rows
from kvctl.pipeline.files.export_files import Advance, Damage
from kvctl.pipeline.files.export_manifest import ExportManifest
from kvctl.pipeline.jobs.load import histories
from kvctl.pipeline.options import SourceOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from kvctl.pipeline.spark.engine import Engine

LISTED = 1000
"""Maximum number of differences listed; all are counted."""


@dataclass(frozen=True, slots=True)
class ExportVerification:
    """Result of checking the files."""

    path: str
    manifest: ExportManifest
    damage: list[Damage]
    seconds: float

    @property
    def whole(self) -> bool:
        """True if every file is as written, and none is missing or extra."""
        return not self.damage


class ComparedAt(StrEnum):
    """State of the bucket that was compared."""

    CUT = "cut"
    NOW = "now"


@dataclass(frozen=True, slots=True)
class BucketComparison:
    """Differences between a live bucket and an export."""

    bucket: str
    at: ComparedAt
    revision: int
    """Last revision that was compared."""
    counts: dict[str, int]
    """Number of keys that are `missing` in the bucket, `extra` in it, or `differs`."""
    differences: list[KeyDifference]
    """First differences by key, with the export's revision and the bucket's."""
    seconds: float


def verify(folder: Path, advance: Advance = lambda _: None) -> ExportVerification:
    """Compare the files of an export with its manifest; needs no Spark.

    Raises NotFoundError without an export, ConflictError if the manifest is damaged.
    """
    begun = time.monotonic()
    manifest = export_files.read_manifest(folder)
    found = export_files.damages(folder, manifest, advance)
    return ExportVerification(str(folder), manifest, found, time.monotonic() - begun)


def compare(engine: Engine, folder: Path, manifest: ExportManifest, options: SourceOptions) -> BucketComparison:
    """Compare the rows with a bucket at the export's snapshot revision if the bucket still has it, or as it is now.

    Of a copy of the bucket only values are compared, not revisions. Raises BucketNotFound.
    """
    begun = time.monotonic()
    with engine.explaining():
        last, incarnation = worker_connection.run(_standing(options))
        options = replace(options, mode=manifest.mode, filter=manifest.filters)
        there = manifest.cut and incarnation == manifest.incarnation
        at, revision = (ComparedAt.CUT, manifest.cut or 0) if there else (ComparedAt.NOW, last)
        try:
            counts, found = _differences(engine, folder, manifest, options, at)
        except Exception as error:
            if at is ComparedAt.NOW or not isinstance(_meant(error), HistoryLost):
                raise
            at, revision = ComparedAt.NOW, last
            counts, found = _differences(engine, folder, manifest, options, at)
    return BucketComparison(options.bucket, at, revision, counts, found, time.monotonic() - begun)


async def _standing(options: SourceOptions) -> tuple[int, str]:
    """Return the bucket's last revision, and its stream's creation time."""
    async with worker_connection.connected(options) as client:
        binding = await client.bucket(options.bucket).locate(fresh=True)
        info = await streams.info(binding.api, binding.stream)
    return int(info["state"]["last_seq"]), str(info["created"])


def _meant(error: Exception) -> Exception:
    from kvctl.pipeline.spark.failure import explained

    return explained(error)


def _differences(
    engine: Engine, folder: Path, manifest: ExportManifest, options: SourceOptions, at: ComparedAt
) -> tuple[dict[str, int], list[KeyDifference]]:
    """Return the number of keys that differ in each way, and the first of them."""
    from pyspark.sql import Observation
    from pyspark.sql.functions import expr

    exported = file_rows.read(engine.spark, folder, manifest)
    both = (
        _histories(engine, exported, options, manifest, at)
        if manifest.history
        else _latest(engine, exported, options, manifest, at)
    )
    kind = (
        f"case when there is null then '{DifferenceKind.MISSING}' "
        f"when here is null then '{DifferenceKind.EXTRA}' else '{DifferenceKind.DIFFERS}' end"
    )
    observation = Observation()
    counting = [expr(f"count_if(kind = '{name}')").alias(name) for name in DifferenceKind]
    differing = both.selectExpr("key", f"{kind} as kind", "revision", "other_revision").observe(observation, *counting)
    rows = differing.orderBy("key").limit(LISTED).collect()
    found = [KeyDifference(key, DifferenceKind(text), *revisions) for key, text, *revisions in rows]
    return dict(observation.get), found


def _latest(
    engine: Engine, exported: DataFrame, options: SourceOptions, manifest: ExportManifest, at: ComparedAt
) -> DataFrame:
    """Return the keys whose value differs: whether each side has them, and at which revision.

    Entries of a commit have no revision.
    """
    options = replace(options, columns=("key", "value", "revision"))
    if at is ComparedAt.CUT:
        options = replace(options, as_of=manifest.cut, on_evicted="fail")
    digest = "sha2(value, 256)"
    first = exported.selectExpr("key", "true as here", "revision", f"{digest} as digest")
    second = contents.read(engine.spark, options).selectExpr(
        "key", "true as there", "revision as other_revision", f"{digest} as other_digest"
    )
    return first.join(second, "key", "full").where("not (digest <=> other_digest)")


def _histories(
    engine: Engine, exported: DataFrame, options: SourceOptions, manifest: ExportManifest, at: ComparedAt
) -> DataFrame:
    """Compare as `_latest`, but all entries of a key; at the cut without those evicted from the bucket since."""
    there = contents.read(engine.spark, replace(options, columns=("key", "value", "revision", "operation")))
    both = (
        histories(exported, "held")
        .join(histories(there, "stored"), "key", "full")
        .selectExpr("key", "coalesce(held, array()) as held", "coalesce(stored, array()) as stored")
    )
    if at is ComparedAt.CUT:
        both = both.selectExpr(
            "key",
            "held",
            f"filter(stored, entry -> entry.revision <= {manifest.cut}) as at_cut",
            f"exists(stored, entry -> entry.revision > {manifest.cut}) as moved",
        ).where(_NOT_AS_AT_CUT)
        stored = "at_cut"
    else:
        both = both.where(f"{_CONTENTS.format('held')} != {_CONTENTS.format('stored')}")
        stored = "stored"
    return both.selectExpr(
        "key",
        "try_element_at(held, -1) as here",
        "try_element_at(held, -1).revision as revision",
        f"try_element_at({stored}, -1) as there",
        f"try_element_at({stored}, -1).revision as other_revision",
    )


_CONTENTS = "transform({0}, entry -> struct(entry.operation, entry.digest))"
_NOT_AS_AT_CUT = """
    at_cut != case when moved and size(at_cut) < size(held)
                   then slice(held, size(held) - size(at_cut) + 1, size(at_cut)) else held end
"""
