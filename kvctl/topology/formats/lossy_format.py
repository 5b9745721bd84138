"""Settings that the format of another tool cannot express. [pure]"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from kvctl.jetstream.stream_info import StreamConfig
from kvctl.kv.config_diff import Difference, differences, shown
from kvctl.topology.formats import nack, terraform
from kvctl.topology.formats.placed import Contexts, Placed
from kvctl.topology.hazards.hazards import Hazard

LOSSY_FORMAT = "lossy-format"

_WAYS: Mapping[str, tuple[str, Callable[[StreamConfig], Any], Callable[[Any], StreamConfig], tuple[str, ...]]] = {
    "nack": ("a `Stream` resource", nack.spec_of, nack.config_of, ("api_prefix",)),
    "terraform": ("the provider", terraform.arguments_of, terraform.config_of, ("api_prefix", "domain")),
}
"""By format: what it is, how a stream is written and read, and fields of contexts that it has no place for."""


def of_format(name: str, streams: Iterable[Placed], contexts: Contexts) -> list[Hazard]:
    """Return a hazard for each setting that is not created as it is in the configuration."""
    if name not in _WAYS:
        return []
    what, write, read, lacking = _WAYS[name]
    streams = list(streams)
    found = [
        Hazard(LOSSY_FORMAT, f"`{stream.name}`: {what} cannot express {_setting(item)}")
        for stream in streams
        for item in differences(stream.config, read(write(stream.config)))
    ]
    places = dict.fromkeys(stream.place for stream in streams)
    return [*found, *_of_contexts(what, lacking, places, contexts)]


def _setting(item: Difference) -> str:
    return f"{item.field} {shown(item.field, item.before)}"


def _of_contexts(what: str, lacking: Iterable[str], places: Iterable[str], contexts: Contexts) -> Iterator[Hazard]:
    for place in places:
        for field in lacking:
            if field in contexts.get(place, {}):
                text = f"context `{place}`: {what} cannot express {field} {contexts[place][field]}"
                yield Hazard(LOSSY_FORMAT, text)
