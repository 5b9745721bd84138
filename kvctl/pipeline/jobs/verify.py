"""Verify an export: its files against the manifest, and what they hold against a live bucket."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from kvctl.errors import HistoryLost
from kvctl.jetstream import streams
from kvctl.kv.maintenance.compare_buckets import Differing, KeyDifference
from kvctl.pipeline.files import contents, export_files, file_rows
from kvctl.pipeline.files.export_files import Advance, Damage
from kvctl.pipeline.files.export_manifest import Manifest
from kvctl.pipeline.options import SourceOptions
from kvctl.pipeline.read import worker_connection
from kvctl.pipeline.write.missing_history import histories

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from kvctl.pipeline.spark.engine import Engine

LISTED = 1000
"""Differences that are listed; all are counted."""


@dataclass(frozen=True, slots=True)
class Verified:
    """What became of the files."""

    path: str
    manifest: Manifest
    damage: list[Damage]
    seconds: float

    @property
    def whole(self) -> bool:
        """Whether every file is as it was written, and none is missing or new."""
        return not self.damage


class At(StrEnum):
    """As of when the bucket was compared."""

    CUT = "cut"
    NOW = "now"


@dataclass(frozen=True, slots=True)
class Compared:
    """In what a live bucket differs from an export."""

    bucket: str
    at: At
    revision: int
    """The last one that was compared."""
    counts: dict[str, int]
    """Of keys: `missing` in the bucket, `extra` in it, or `differs`."""
    differences: list[KeyDifference]
    """The first of them by key; the export's revision, and the bucket's."""
    seconds: float


def verify(folder: Path, advance: Advance = lambda _: None) -> Verified:
    """Compare the files of an export with its manifest; needs no Spark.

    Raises NotFoundError where there is no export, ConflictError where the manifest is damaged.
    """
    begun = time.monotonic()
    manifest = export_files.read_manifest(folder)
    found = export_files.damages(folder, manifest, advance)
    return Verified(str(folder), manifest, found, time.monotonic() - begun)


def compare(engine: Engine, folder: Path, manifest: Manifest, options: SourceOptions) -> Compared:
    """Compare the rows with a bucket: as of the export's cut where it is the same one and still holds that, else now.

    Of a copy of the bucket only what keys hold is compared, not at what revisions. Raises BucketNotFound.
    """
    begun = time.monotonic()
    with engine.explaining():
        last, incarnation = worker_connection.run(_standing(options))
        options = replace(options, mode=manifest.mode, filter=manifest.filters)
        there = manifest.cut and incarnation == manifest.incarnation
        at, revision = (At.CUT, manifest.cut or 0) if there else (At.NOW, last)
        try:
            counts, found = _differences(engine, folder, manifest, options, at)
        except Exception as error:
            if at is At.NOW or not isinstance(_meant(error), HistoryLost):
                raise
            at, revision = At.NOW, last
            counts, found = _differences(engine, folder, manifest, options, at)
    return Compared(options.bucket, at, revision, counts, found, time.monotonic() - begun)


async def _standing(options: SourceOptions) -> tuple[int, str]:
    """The bucket's last revision, and when its stream was created."""
    async with worker_connection.connected(options) as client:
        binding = await client.bucket(options.bucket).locate(fresh=True)
        info = await streams.info(binding.api, binding.stream)
    return int(info["state"]["last_seq"]), str(info["created"])


def _meant(error: Exception) -> Exception:
    from kvctl.pipeline.spark.failure import explained

    return explained(error)


def _differences(
    engine: Engine, folder: Path, manifest: Manifest, options: SourceOptions, at: At
) -> tuple[dict[str, int], list[KeyDifference]]:
    """How many keys differ in each way, and the first of them."""
    from pyspark.sql import Observation
    from pyspark.sql.functions import expr

    exported = file_rows.read(engine.spark, folder, manifest)
    both = (
        _histories(engine, exported, options, manifest, at)
        if manifest.history
        else _latest(engine, exported, options, manifest, at)
    )
    kind = (
        f"case when there is null then '{Differing.MISSING}' "
        f"when here is null then '{Differing.EXTRA}' else '{Differing.DIFFERS}' end"
    )
    observation = Observation()
    counting = [expr(f"count_if(kind = '{name}')").alias(name) for name in Differing]
    differing = both.selectExpr("key", f"{kind} as kind", "revision", "other_revision").observe(observation, *counting)
    rows = differing.orderBy("key").limit(LISTED).collect()
    found = [KeyDifference(row["key"], Differing(row["kind"]), row["revision"], row["other_revision"]) for row in rows]
    return dict(observation.get), found


def _latest(engine: Engine, exported: DataFrame, options: SourceOptions, manifest: Manifest, at: At) -> DataFrame:
    """The keys of which export and bucket hold something else: whether each has them, and at which revision.

    Entries of a commit have no revision.
    """
    options = replace(options, columns=("key", "value", "revision"))
    if at is At.CUT:
        options = replace(options, as_of=manifest.cut, on_evicted="fail")
    digest = "sha2(value, 256)"
    first = exported.selectExpr("key", "true as here", "revision", f"{digest} as digest")
    second = contents.read(engine.spark, options).selectExpr(
        "key", "true as there", "revision as other_revision", f"{digest} as other_digest"
    )
    return first.join(second, "key", "full").where("not (digest <=> other_digest)")


def _histories(engine: Engine, exported: DataFrame, options: SourceOptions, manifest: Manifest, at: At) -> DataFrame:
    """The same by all entries of a key; at the cut without what later ones pushed out of the bucket."""
    there = contents.read(engine.spark, replace(options, columns=("key", "value", "revision", "operation")))
    both = (
        histories(exported, "held")
        .join(histories(there, "stored"), "key", "full")
        .selectExpr("key", "coalesce(held, array()) as held", "coalesce(stored, array()) as stored")
    )
    if at is At.CUT:
        both = both.selectExpr(
            "key", "held", f"filter(stored, entry -> entry.revision <= {manifest.cut}) as at_cut",
            f"exists(stored, entry -> entry.revision > {manifest.cut}) as moved",
        ).where(_NOT_AS_AT_CUT)  # fmt: skip
        stored = "at_cut"
    else:
        both = both.where(f"{_CONTENTS.format('held')} != {_CONTENTS.format('stored')}")
        stored = "stored"
    return both.selectExpr(
        "key", "try_element_at(held, -1) as here", "try_element_at(held, -1).revision as revision",
        f"try_element_at({stored}, -1) as there", f"try_element_at({stored}, -1).revision as other_revision",
    )  # fmt: skip


_CONTENTS = "transform({0}, entry -> struct(entry.operation, entry.digest))"
_NOT_AS_AT_CUT = """
    at_cut != case when moved and size(at_cut) < size(held)
                   then slice(held, size(held) - size(at_cut) + 1, size(at_cut)) else held end
"""
