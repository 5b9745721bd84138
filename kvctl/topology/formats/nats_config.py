"""Files of `nats stream add --config`: the server's own JSON, one file for each stream. [pure]"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from kvctl.errors import UsageError
from kvctl.jetstream.config.config_text import STREAM
from kvctl.topology.formats.placed import Found, Placed, SourceFile, checked


def file_name(stream: Placed) -> str:
    """Return the path of a stream's file in the folder of all: `CONTEXT/KV_ORDERS.json`."""
    folder = re.sub(r"^\.|[^A-Za-z0-9_.-]", "_", stream.place)
    return f"{folder}/{stream.name}.json" if folder else f"{stream.name}.json"


def read(files: Iterable[SourceFile]) -> Found:
    """Read configurations, answers of `nats stream info --json`, and arrays of both. Raises UsageError."""
    found = Found()
    for file in files:
        for item in file.data if isinstance(file.data, list) else [file.data]:
            config = _config(file, item)
            known = {name: value for name, value in config.items() if name in STREAM}
            remarks = [f"`{name}`" for name, value in config.items() if name not in STREAM and value]
            try:
                found.add(Placed(checked(known), file.place), remarks)
            except UsageError as error:
                found.leave_out(f"stream {config['name']}", error.message)
            if file.place:
                found.contexts[file.place] = {"context": file.place}
    return found


def _config(file: SourceFile, item: Any) -> Mapping[str, Any]:
    config = item.get("config", item) if isinstance(item, Mapping) else None
    if not isinstance(config, Mapping) or not isinstance(config.get("name"), str) or not config["name"]:
        raise UsageError(
            f"{file.name} is not a stream configuration", hint="A configuration is an object with the stream's `name`"
        )
    return config
