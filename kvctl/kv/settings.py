"""Settings of buckets, one row for each. [pure]

The options of commands, the fields of topology files, their JSON Schema, edits and differences of configurations follow
from the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from enum import StrEnum
from typing import Any, Literal, NamedTuple, TypeVar

from kvctl.errors import UsageError
from kvctl.jetstream.stream_info import StreamConfig
from kvctl.kv.stream_kind import own_metadata, reserved
from kvctl.units import MAX_INT64, NO_LIMIT, duration_from_ns, duration_ns

T = TypeVar("T")

MAX_HISTORY = 64
MAX_REPLICAS = 5

_ROW = "setting"
_NOTHING = timedelta()

Resource = Literal["bucket", "mirror", "aggregate", "table", "repository"]
"""What has settings."""


class Form(StrEnum):
    """Type of a value, as people write it."""

    TEXT = "text"
    TEXTS = "texts"
    PAIRS = "pairs"
    """Mapping of texts, `KEY=VALUE` in options."""
    INTEGER = "integer"
    FLAG = "flag"
    DURATION = "duration"
    SIZE = "size"
    ROUTE = "route"
    """`SRC=DEST`, two subjects."""


@dataclass(frozen=True, slots=True)
class Republish:
    """Republishing of every stored message from subjects `source` to `destination`."""

    source: str
    destination: str
    headers_only: bool = False

    @classmethod
    def from_stream(cls, value: Mapping[str, Any]) -> Republish:
        """Parse the server's form."""
        return cls(value.get("src", ""), value.get("dest", ""), bool(value.get("headers_only")))


class Setting(NamedTuple):
    """One setting: what people see of it, and its place in a stream configuration."""

    name: str
    form: Form
    default: Any
    stream_field: str
    """Name in the stream configuration, `placement.cluster` if nested."""
    help: str
    of: frozenset[Resource]
    """Resources that have it."""
    metavar: str | None = None
    option: str = ""
    """Name of the option if it is not the setting's: `tag` takes one value, and can be repeated."""
    file_help: str = ""
    """Description of the field in a file, if it is not that of the option."""
    limits: Mapping[str, Any] = {}
    """Limits of the value beyond its form, in terms of JSON Schema."""
    difference: str = ""
    """Name in differences, if it is not the setting's."""
    part_of: str = ""
    """Setting whose value contains this one, which then is not a field of BucketConfig."""
    fixed: bool = False
    """True if it cannot be changed after the creation."""
    clearable: bool = True
    """True if an edit can reset it to its default."""
    check: Callable[[Any], str | None] | None = None
    """Returns the problem of an invalid value, which servers would refuse or silently change."""
    write: Callable[[StreamConfig, Any], None] | None = None
    """Sets it in a stream configuration, if that takes more than one field."""
    read: Callable[[StreamConfig], Any] | None = None
    """Reads it from a stream configuration, if that takes more than one field."""

    @property
    def option_name(self) -> str:
        """Name of the option, without `--`."""
        return (self.option or self.name).replace("_", "-")

    def to_stream(self, stream: StreamConfig, value: Any) -> None:
        """Set the value in a stream configuration. Raises UsageError for an invalid value."""
        problem = self._problem(value)
        if problem:
            raise UsageError(f"`{self.name.replace('_', '-')}` {problem}")
        if self.write is not None:
            self.write(stream, value)
        else:
            _put(stream, self.stream_field, _ENCODERS.get(self.form, _same)(value))

    def from_stream(self, stream: StreamConfig) -> Any:
        """Return the value in a stream configuration."""
        if self.read is not None:
            return self.read(stream)
        found = _get(stream, self.stream_field)
        return self.default if found is None else _DECODERS.get(self.form, _same)(found)

    def _problem(self, value: Any) -> str | None:
        if value is None:
            return None
        least, most = self.limits.get("minimum"), self.limits.get("maximum")
        if least is not None and most is not None and not least <= value <= most:
            return f"must be {least} to {most}, not {value}"
        words = self.limits.get("enum")
        if words and value not in words:
            return f"must be {' or '.join(f'`{word}`' for word in words)}, not `{value}`"
        if self.form is Form.SIZE and value < 1 and value != NO_LIMIT:
            return "must be at least 1 byte"
        return self.check(value) if self.check is not None else None


# -- values in the server's terms --------------------------------------------------------------------------

_ENCODERS: Mapping[Form, Callable[[Any], Any]] = {
    Form.DURATION: duration_ns,
    Form.SIZE: lambda size: size or -1,
    Form.TEXTS: list,
}
_DECODERS: Mapping[Form, Callable[[Any], Any]] = {
    Form.DURATION: duration_from_ns,
    Form.SIZE: lambda size: size if size > 0 else None,
    Form.TEXTS: tuple,
    Form.FLAG: bool,
}
_ALWAYS = ("max_msgs_per_subject", "max_age", "num_replicas", "storage", "max_msg_size", "max_bytes")
"""Fields that ADR-8's JSON has even if they are empty."""


def _same(value: T) -> T:
    return value


def _get(stream: StreamConfig, path: str) -> Any:
    outer, _, inner = path.rpartition(".")
    return ((stream.get(outer) or {}) if outer else stream).get(inner) or None


def _put(stream: StreamConfig, path: str, value: Any) -> None:
    """Set a field, or omit it when it is empty, as ADR-8's own JSON does."""
    outer, _, inner = path.rpartition(".")
    if outer:
        around = dict(stream.get(outer) or {})
        _put(around, inner, value)
        _put(stream, outer, around)
    elif value or path in _ALWAYS:
        stream[path] = value
    else:
        stream.pop(path, None)


def _write_markers(stream: StreamConfig, value: timedelta) -> None:
    _put(stream, "subject_delete_marker_ttl", duration_ns(value))
    if value:
        stream["allow_msg_ttl"] = True  # permanent: servers refuse to turn it off again


def _write_compress(stream: StreamConfig, value: bool) -> None:
    if value or stream.get("compression"):
        stream["compression"] = "s2" if value else "none"


def _write_metadata(stream: StreamConfig, value: Mapping[str, str]) -> None:
    _put(stream, "metadata", {**(stream.get("metadata") or {}), **value})


def _write_republish(stream: StreamConfig, value: Republish | None) -> None:
    found = value and {"src": value.source, "dest": value.destination, "headers_only": value.headers_only}
    _put(stream, "republish", found and {name: part for name, part in found.items() if part})


def _write_headers_only(stream: StreamConfig, value: bool) -> None:
    if not stream.get("republish"):
        raise UsageError("Nothing is republished", hint="Give `--republish SRC=DEST` with `--republish-headers-only`")
    _put(stream, "republish.headers_only", value)


def _read_republish(stream: StreamConfig) -> Republish | None:
    found = stream.get("republish")
    return Republish.from_stream(found) if found else None


# -- problems of values ------------------------------------------------------------------------------------


def _at_least(shortest: timedelta, text: str) -> Callable[[timedelta], str | None]:
    return lambda value: f"must be at least {text}" if value and value < shortest else None


def _metadata_problem(metadata: Mapping[str, str]) -> str | None:
    if "" in metadata:
        return "has an entry without a name"
    return next((f"`{name}` is reserved" for name in metadata if reserved(name)), None)


def _republish_problem(value: Republish) -> str | None:
    return None if value.source and value.destination else "needs two subjects, as in `$KV.orders.>=copies.>`"


# -- the rows ----------------------------------------------------------------------------------------------

_ALL: tuple[Resource, ...] = ("bucket", "mirror", "aggregate", "table", "repository")


def _row(default: T, form: Form, stream_field: str, help: str, *, of: Iterable[Resource] = _ALL, **more: Any) -> T:
    """Create a field of a dataclass that is also a row; its name is the field's."""
    row = Setting("", form, default, stream_field, help, frozenset(of), **more)
    given: Any = {"default_factory": dict} if default == {} else {"default": default}
    made: T = field(metadata={_ROW: row}, **given)
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of buckets, mirrors and aggregates."""

    description: str = _row("", Form.TEXT, "description", "Description", metavar="TEXT")
    replicas: int = _row(
        1,
        Form.INTEGER,
        "num_replicas",
        f"Number of stream replicas, 1 to {MAX_REPLICAS}",
        metavar="N",
        limits={"minimum": 1, "maximum": MAX_REPLICAS},
    )
    storage: str = _row(
        "file",
        Form.TEXT,
        "storage",
        "Storage: `file` or `memory`",
        metavar="KIND",
        limits={"enum": ["file", "memory"]},
        fixed=True,
    )
    max_value_size: int | None = _row(
        None,
        Form.SIZE,
        "max_msg_size",
        "Maximum size of a value, including headers",
        of=("bucket", "mirror", "aggregate", "table"),
    )
    max_bytes: int | None = _row(None, Form.SIZE, "max_bytes", "Maximum total size")
    compress: bool = _row(
        False,
        Form.FLAG,
        "compression",
        "Compress on disk (s2)",
        difference="compression",
        write=_write_compress,
        read=lambda stream: stream.get("compression", "none") != "none",
    )
    cluster: str | None = _row(
        None,
        Form.TEXT,
        "placement.cluster",
        "Cluster to place the stream in",
        metavar="NAME",
        check=lambda value: "is empty" if value == "" else None,
    )
    tags: tuple[str, ...] = _row(
        (),
        Form.TEXTS,
        "placement.tags",
        "Server tag required for placement",
        option="tag",
        metavar="TAG",
        file_help="Server tags required for placement",
        check=lambda value: "contains an empty tag" if "" in value else None,
    )
    metadata: Mapping[str, str] = _row(
        {},
        Form.PAIRS,
        "metadata",
        "Metadata entry",
        metavar="KEY=VALUE",
        file_help="Custom names and values",
        limits={"propertyNames": {"minLength": 1}},
        check=_metadata_problem,
        write=_write_metadata,
        read=own_metadata,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketSettings(Settings):
    """Settings of buckets and aggregates."""

    atomic: bool = _row(
        False, Form.FLAG, "allow_atomic", "Allow atomic writes of several keys", of=("bucket", "aggregate")
    )
    first_revision: int | None = _row(
        None,
        Form.INTEGER,
        "first_seq",
        "Revision of the first entry, above those of an earlier bucket of this name",
        of=("bucket", "aggregate"),
        metavar="N",
        limits={"minimum": 1, "maximum": MAX_INT64},
        fixed=True,
        clearable=False,
        write=lambda stream, value: stream.update({"first_seq": value} if value else {}),
    )
    """None: 1 for a new bucket, and as it is for an existing one."""
    republish: Republish | None = _row(
        None,
        Form.ROUTE,
        "republish",
        "Republish stored messages of subject SRC to DEST",
        of=("bucket", "aggregate", "table"),
        metavar="SRC=DEST",
        file_help="Republish stored messages: SRC=DEST",
        limits={"pattern": "^[^=]+=.+$"},
        check=_republish_problem,
        write=_write_republish,
        read=_read_republish,
    )


_INHERITED = (
    Setting(
        "history",
        Form.INTEGER,
        1,
        "max_msgs_per_subject",
        f"Revisions to keep per key, 1 to {MAX_HISTORY}",
        of=frozenset(("bucket", "mirror", "aggregate")),
        metavar="N",
        limits={"minimum": 1, "maximum": MAX_HISTORY},
        read=lambda stream: stream.get("max_msgs_per_subject", 0),
    ),
    Setting(
        "ttl",
        Form.DURATION,
        _NOTHING,
        "max_age",
        "Age at which entries expire",
        of=frozenset(("bucket", "mirror", "aggregate", "table")),
        check=_at_least(timedelta(milliseconds=100), "100 ms"),
    ),
    Setting(
        "marker_ttl",
        Form.DURATION,
        _NOTHING,
        "subject_delete_marker_ttl",
        "Allow per-key TTLs, and keep markers of expired keys for this long",
        of=frozenset(("bucket", "aggregate")),
        check=_at_least(timedelta(seconds=1), "1 second"),
        write=_write_markers,
    ),
)
"""Settings that replicas take from their origins by default, so that each kind of replica declares them itself."""

_HEADERS_ONLY = Setting(
    "republish_headers_only",
    Form.FLAG,
    False,
    "republish.headers_only",
    "Republish only headers, without values",
    of=frozenset(("bucket", "aggregate", "table")),
    part_of="republish",
    clearable=False,
    write=_write_headers_only,
)


_DECLARED = [item.metadata[_ROW]._replace(name=item.name) for item in fields(BucketSettings)]

SETTINGS: Mapping[str, Setting] = {row.name: row for row in (*_INHERITED, *_DECLARED, _HEADERS_ONLY)}
"""All rows, by name."""
FIELDS: Mapping[str, Any] = {name: row.default for name, row in SETTINGS.items() if not row.part_of}
"""Fields of BucketConfig and their defaults."""
FIXED = tuple(row for row in SETTINGS.values() if row.fixed)
"""Settings that cannot be changed after the creation."""


def settings_of(resource: Resource) -> tuple[str, ...]:
    """Return the fields of BucketConfig that a resource has."""
    return tuple(name for name in FIELDS if resource in SETTINGS[name].of)
