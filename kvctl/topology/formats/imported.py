"""Topology files from the files of other tools. [pure]"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from kvctl.errors import RefusedError
from kvctl.jetstream.stream_info import StreamConfig
from kvctl.kv.config_edit import DUPLICATE_WINDOW
from kvctl.kv.names import STREAM_PREFIX
from kvctl.topology.file.document import VERSION
from kvctl.topology.file.export import Exported, export_configs
from kvctl.topology.file.fields import SECTIONS
from kvctl.topology.formats import nack, nats_config, terraform
from kvctl.topology.formats.placed import Found, SourceFile
from kvctl.units import duration_ns

READERS: Mapping[str, Callable[[Iterable[SourceFile]], Found]] = {
    "nats": nats_config.read,
    "nack": nack.read_resources,
    "terraform": terraform.read_resources,
}
"""Readers of the formats, by name."""


def topology_file(found: Found) -> Exported:
    """Return the topology file of the streams, and what it does not express. Raises RefusedError if it is empty."""
    exported = Exported({section: {} for section in SECTIONS}, left_out=dict(found.left_out))
    titles: set[str | None] = set()
    for place in dict.fromkeys(stream.place for stream in found.streams):
        here = [_completed(stream.config) for stream in found.streams if stream.place == place]
        one = export_configs(here, [stream.config for stream in found.streams if stream.place != place])
        titles.add(one.document.get("name"))
        _merge(exported, one, place)
    names = set(exported.names)
    for stream, remarks in found.remarks.items():
        name = stream if stream in names else stream.removeprefix(STREAM_PREFIX)
        if name in names:
            exported.remarks.setdefault(name, []).extend(remarks)
    if not names:
        reasons = [f"{name}: {reason}" for name, reason in exported.left_out.items()]
        raise RefusedError("\n  ".join(["The input has no bucket, mirror or aggregate", *reasons]))
    title = titles.pop() if len(titles) == 1 else None
    head = {"version": VERSION, "name": title, "contexts": found.contexts}
    exported.document = {field: value for field, value in {**head, **exported.document}.items() if value}
    return exported


def _merge(exported: Exported, one: Exported, place: str) -> None:
    """Add the streams of one context to the file."""
    taken = set(exported.names)
    for section in SECTIONS:
        for name, fields in one.document.get(section, {}).items():
            if name in taken:
                exported.left_out[f"{name} in {place}"] = "another context has the same name"
                continue
            exported.document[section][name] = {"in": place, **fields} if place else fields
    exported.left_out |= one.left_out
    exported.remarks |= {name: texts for name, texts in one.remarks.items() if name not in taken}


def _completed(config: StreamConfig) -> StreamConfig:
    """Return the configuration with the duplicate window that servers set on streams that listen on subjects alone."""
    if config.get("mirror") or config.get("sources") or config.get("duplicate_window"):
        return config
    longest, age = duration_ns(DUPLICATE_WINDOW), config.get("max_age") or 0
    return {**config, "duplicate_window": min(longest, age) if age else longest}
