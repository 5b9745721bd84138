"""What the other tools accept, as JSON Schema, from tables of our own: field, type, `!` if it is required.

To refresh a table, compare it with the schema that its comment names, at a newer tag, and change version and lines.
Types are those of JSON, `map` for texts by name, words with `|` an enumeration, `{x}` an object of the table `x`,
`[...]` a list, and `[...]1` a list of at most one.
"""

from typing import Any

from jsonschema import Draft202012Validator

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
