"""What other tools create from their files, as measured: NACK 0.22.4, provider nats-io/jetstream 0.4.0.

A setting that a format cannot express is one that differs from the topology's after it went through these.
"""

import re
from collections.abc import Mapping
from typing import Any

from kvctl.units import duration_ns, parse_duration

_NACK = {
    "replicas": "num_replicas",
    "firstSequence": "first_seq",
    "allowRollup": "allow_rollup_hdrs",
    "allowAtomicPublish": "allow_atomic",
}
_TERRAFORM = {"replicas": "num_replicas", "source": "sources"}
_SECONDS = ("max_age", "duplicate_window", "subject_delete_marker_ttl")
_DROPPED = ("account", "jsDomain", "provider", "depends_on")


def created_by_nack(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the stream that the controller creates: memory is its default storage."""
    found = {_NACK.get(name) or _snake(name): value for name, value in spec.items() if name not in _DROPPED}
    for name in {*_SECONDS} & found.keys():
        found[name] = duration_ns(parse_duration(found[name]))
    if republish := found.get("republish"):
        found["republish"] = {"src": republish["source"], "dest": republish["destination"]}
    if "mirror" in found:
        found["mirror"] = _of_nack(found["mirror"])
    if "sources" in found:
        found["sources"] = [_of_nack(source) for source in found["sources"]]
    return {"storage": "memory", **found}


def created_by_terraform(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the stream that the provider creates from a block in JSON syntax, whose texts are templates."""
    given = {name: _literal(value) for name, value in body.items() if name not in _DROPPED}
    found = {_TERRAFORM.get(name, name): value for name, value in given.items() if not name.startswith("placement_")}
    found = {name: value for name, value in found.items() if not name.startswith("republish_")}
    found = {"duplicate_window": 120, "allow_direct": True, **found}
    for name in {*_SECONDS} & found.keys():
        found[name] *= 10**9
    if cluster := given.get("placement_cluster"):
        found["placement"] = {"cluster": cluster, "tags": given.get("placement_tags", [])}
    if "republish_source" in given:
        found["republish"] = {
            "src": given["republish_source"],
            "dest": given["republish_destination"],
            "headers_only": given.get("republish_headers_only", False),
        }
    if "mirror" in found:
        found["mirror"] = _of_terraform(*found["mirror"])
    if "sources" in found:
        found["sources"] = [_of_terraform(source) for source in found["sources"]]
    return found


def _of_nack(source: Mapping[str, Any]) -> dict[str, Any]:
    found = {_snake(name): value for name, value in source.items()}
    external = {"api": found.pop("external_api_prefix", None), "deliver": found.pop("external_deliver_prefix", None)}
    found |= {"external": {name: text for name, text in external.items() if text}} if external["api"] else {}
    if rules := found.get("subject_transforms"):
        found["subject_transforms"] = [{"src": rule["source"], "dest": rule["dest"]} for rule in rules]
    return found


def _of_terraform(source: Mapping[str, Any]) -> dict[str, Any]:
    names = {"start_seq": "opt_start_seq", "subject_transform": "subject_transforms"}
    found = {names.get(name, name): value for name, value in source.items()}
    if "external" in found:
        (found["external"],) = found["external"]
    if rules := found.get("subject_transforms"):
        found["subject_transforms"] = [{"src": rule["source"], "dest": rule["destination"]} for rule in rules]
    return found


def _literal(value: Any) -> Any:
    if isinstance(value, str):
        assert not re.search(r"(?<!\$)\$\{|(?<!%)%\{", value), f"`{value}` would be a template"
        return value.replace("$${", "${").replace("%%{", "%{")
    if isinstance(value, list):
        return [_literal(item) for item in value]
    return {_literal(name): _literal(item) for name, item in value.items()} if isinstance(value, Mapping) else value


def _snake(name: str) -> str:
    return re.sub("[A-Z]", lambda match: f"_{match[0].lower()}", name)
