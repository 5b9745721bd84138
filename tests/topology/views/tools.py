"""What other tools accept and create from their files, as measured: NACK 0.22.4, provider nats-io/jetstream 0.4.0.

A setting that a format cannot express is one that differs from the topology's after it went through these.

What they accept is JSON Schema, from tables of our own: field, type, `!` if it is required. To refresh a table, compare
it with the schema that its comment names, at a newer tag, and change version and lines. Types are those of JSON, `map`
for texts by name, words with `|` an enumeration, `{x}` an object of the table `x`, `[...]` a list, and `[...]1` a list
of at most one.
"""

import re
from collections.abc import Mapping
from typing import Any

from jsonschema import Draft202012Validator

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


# github.com/nats-io/nack, tag v0.22.4, deploy/crds.yml: Stream v1beta2. Kubernetes drops fields that are not in it.
NACK = {
    "stream": """
        name string!                    description string              subjects [string]
        retention limits|interest|workqueue                             storage file|memory
        maxConsumers integer            maxMsgs integer                 maxBytes integer
        discard old|new                 discardPerSubject boolean       maxAge string
        maxMsgsPerSubject integer       maxMsgSize integer              replicas integer
        noAck boolean                   duplicateWindow string          placement {placement}
        mirror {source}                 sources [{source}]              sealed boolean
        denyDelete boolean              denyPurge boolean               allowRollup boolean
        compression s2|none|            firstSequence number            subjectTransform {transform}
        republish {republish}           allowDirect boolean             mirrorDirect boolean
        allowMsgTtl boolean             subjectDeleteMarkerTtl string   allowMsgCounter boolean
        allowAtomicPublish boolean      allowMsgSchedules boolean       persistMode string
        consumerLimits {limits}         metadata map                    account string
        creds string                    nkey string                     preventDelete boolean
        preventUpdate boolean           servers [string]                tls {tls}
        tlsFirst boolean                jsDomain string
    """,
    "placement": "cluster string  tags [string]",
    "source": """
        name string                     optStartSeq integer             optStartTime string
        filterSubject string            externalApiPrefix string        externalDeliverPrefix string
        subjectTransforms [{transform}]
    """,
    "transform": "source string  dest string",
    "republish": "source string  destination string",
    "limits": "inactiveThreshold string  maxAckPending integer",
    "tls": "clientCert string  clientKey string  rootCas [string]",
}

# github.com/nats-io/terraform-provider-jetstream, tag v0.4.0, jetstream/resource_jetstream_stream.go.
TERRAFORM = {
    "stream": """
        name string!                    description string              metadata map
        subjects [string]               discard old|new                 discard_new_per_subject boolean
        max_msgs integer                max_msgs_per_subject integer    max_bytes integer
        max_age integer                 duplicate_window integer        max_msg_size integer
        storage file|memory             ack boolean                     retention limits|interest|workqueue
        compression none|s2             max_consumers integer           replicas integer
        deny_delete boolean             deny_purge boolean              allow_rollup_hdrs boolean
        allow_direct boolean            mirror_direct boolean           placement_cluster string
        placement_tags [string]         placement_preferred string      subject_transform [{transform}]1
        mirror [{source}]1              source [{source}]               republish_source string
        republish_destination string    republish_headers_only boolean  max_ack_pending integer
        inactive_threshold integer      allow_msg_ttl boolean           subject_delete_marker_ttl integer
        allow_msg_counter boolean       allow_atomic boolean            allow_msg_schedules boolean
        first_seq integer               persist_mode default|async|     allow_batched boolean
        provider string                 depends_on [string]
    """,
    "transform": "source string!  destination string!",
    "source": """
        name string!                    start_seq integer               start_time string
        filter_subject string           subject_transform [{transform}] external [{external}]1
        consumer [{consumer}]1
    """,
    "external": "api string  deliver string",
    "consumer": "name string!  deliver_subject string!",
}

# github.com/nats-io/jsm.go, commit caea3c5, schemas/jetstream/api/v1/stream_configuration.json, which `nats` checks.
NATS = {
    "stream": """
        name string                     description string              subjects [string]
        subject_transform {transform}   retention limits|interest|workqueue!
        max_consumers integer!          max_msgs integer!               max_msgs_per_subject integer
        max_bytes integer!              max_age integer!                max_msg_size integer
        storage file|memory!            compression none|s2             first_seq integer
        num_replicas integer!           no_ack boolean                  discard old|new
        duplicate_window integer        placement {placement}           mirror {source}
        sources [{source}]              sealed boolean                  deny_delete boolean
        deny_purge boolean              allow_rollup_hdrs boolean       allow_direct boolean
        allow_atomic boolean            allow_msg_counter boolean       allow_msg_schedules boolean
        mirror_direct boolean           republish {republish}           discard_new_per_subject boolean
        metadata map                    consumer_limits {limits}        allow_msg_ttl boolean
        subject_delete_marker_ttl integer                               persist_mode default|async|
        allow_batched boolean
    """,
    "transform": "src string!  dest string!",
    "placement": "cluster string  tags [string]  preferred string",
    "source": """
        name string!                    opt_start_seq integer           opt_start_time string
        filter_subject string           subject_transforms [{transform}]
        consumer {consumer}             external {external}
    """,
    "consumer": "name string!  deliver_subject string!",
    "external": "api string!  deliver string",
    "republish": "src string  dest string!  headers_only boolean",
    "limits": "inactive_threshold integer  max_ack_pending integer",
}


def validator(tables: dict[str, str]) -> Draft202012Validator:
    """Return the validator of a tool's streams, which accepts no field that the tool does not have."""
    schema = {"$ref": "#/$defs/stream", "$defs": {name: _object(text) for name, text in tables.items()}}
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def _object(table: str) -> dict[str, Any]:
    words = table.split()
    types = dict(zip(words[::2], words[1::2], strict=True))
    return {
        "type": "object",
        "properties": {name: _type(text.removesuffix("!")) for name, text in types.items()},
        "required": [name for name, text in types.items() if text.endswith("!")],
        "additionalProperties": False,
    }


def _type(text: str) -> dict[str, Any]:
    if text.startswith("["):
        inside, _, limit = text[1:].rpartition("]")
        return {"type": "array", "items": _type(inside), **({"maxItems": int(limit)} if limit else {})}
    if text.startswith("{"):
        return {"$ref": f"#/$defs/{text[1:-1]}"}
    if text == "map":
        return {"type": "object", "additionalProperties": {"type": "string"}}
    return {"type": "string", "enum": text.split("|")} if "|" in text else {"type": text}
