"""Options of the data source `nats-kv`: one table, from which they are read, checked and documented. [pure]

Spark passes option names in lower case, so any case is accepted. Options of all purposes are known everywhere: a table
of Spark's catalog is read and written with the same ones. A new option is a row of OPTIONS and a field of
SourceOptions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any

from kvctl.errors import UsageError
from kvctl.kv.names import check_bucket, check_filter
from kvctl.phrases import quoted
from kvctl.suggest import did_you_mean
from kvctl.units import format_duration, parse_duration, parse_time
from kvctl.urls import addresses, redact


class Purpose(StrEnum):
    """Purpose of an option; the order is that of the documentation."""

    CONNECTION = "Connection"
    READ = "Reading"
    WRITE = "Writing"
    STREAM = "Streaming"


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Parsed options. Frozen and picklable; has names and paths, never a secret."""

    bucket: str
    context: str | None = None
    url: str | None = None
    user: str | None = None
    password_file: str | None = None
    token_file: str | None = None
    creds: str | None = None
    nkey: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_ca: str | None = None
    tls_first: bool = False
    domain: str | None = None
    api_prefix: str | None = None
    inbox_prefix: str | None = None
    timeout: timedelta | None = None
    mode: str = "latest"
    columns: tuple[str, ...] = ()
    filter: tuple[str, ...] = ()
    include_deleted: bool = False
    from_revision: int | None = None
    to_revision: int | None = None
    as_of: int | None = None
    partitions: int | None = None
    on_evicted: str = "newer"
    write_mode: str = "put"
    if_different: bool = False
    dead_letter: str | None = None
    write_id: str | None = None
    starting_revision: str = "earliest"
    starting_time: str | None = None
    max_revisions_per_trigger: int | None = None
    fail_on_data_loss: bool = True


@dataclass(frozen=True, slots=True)
class Option:
    """One row of the table: the option's name, purpose, form of the value, and help in one sentence."""

    name: str
    purpose: Purpose
    read: Callable[[str], Any]
    """Parses the value from its text. Raises UsageError."""
    form: str
    """Placeholder of the value in the documentation."""
    help: str

    @property
    def field(self) -> str:
        """Field of SourceOptions."""
        return "".join(f"_{c.lower()}" if c.isupper() else c for c in self.name)

    @property
    def default(self) -> str:
        """Default as it would be written; empty for none."""
        value = SourceOptions.__dataclass_fields__[self.field].default
        return str(value).lower() if isinstance(value, bool) else value if isinstance(value, str) else ""


def parse(given: Mapping[str, str]) -> SourceOptions:
    """Parse the options passed to Spark. Raises UsageError, which names the option, or the most similar one."""
    values: dict[str, Any] = {}
    for name, text in given.items():
        option = _named(name)
        if option is not None:
            values[option.field] = _value(option, text)
    if "bucket" not in values:
        raise UsageError("The option `bucket` is missing", hint=_NO_BUCKET)
    options = SourceOptions(**values)
    _check_together(options)
    return options


_NO_BUCKET = (
    'Add `.option("bucket", NAME)`; in SQL `with (bucket = ...)` after the table name, '
    "as Spark does not pass catalog properties to a source"
)


def given_as(options: SourceOptions) -> dict[str, str]:
    """Return the options as a user writes them, without defaults: `parse` reads them back."""
    texts = {}
    for option in OPTIONS:
        value = getattr(options, option.field)
        if value != SourceOptions.__dataclass_fields__[option.field].default:
            texts[option.name] = _text(value)
    return texts


def _named(name: str) -> Option | None:
    """Return the option of this name in any case; None for Spark's own. Raises UsageError."""
    lower = name.lower()
    if lower in _BY_NAME:
        return _BY_NAME[lower]
    if lower in _SPARKS_OWN or lower.startswith(_AGAIN):
        return None
    if lower in _SECRET:
        raise UsageError(
            f"Secrets cannot be passed as option `{name}`: Spark would store and distribute them",
            hint=f"{_SECRET[lower]}; paths and contexts are resolved on the machines that run Spark's tasks",
        )
    names = [option.name for option in _BY_NAME.values()]
    hint = did_you_mean(name, names, "`kvctl help pipeline` lists them")
    raise UsageError(f"`{name}` is not an option of nats-kv", hint=hint)


def _value(option: Option, text: str) -> Any:
    if text == "":
        raise UsageError(f"Option `{option.name}` is empty")
    try:
        return option.read(text)
    except UsageError as error:
        raise UsageError(f"Option `{option.name}`: {error.message}", hint=error.hint) from None


def _check_together(options: SourceOptions) -> None:
    changes = options.mode == "changes"
    for name, value in (("fromRevision", options.from_revision), ("toRevision", options.to_revision)):
        if value is not None and not changes:
            raise UsageError(f"Option `{name}` requires mode changes", hint='Add `.option("mode", "changes")`')
    if options.as_of is not None and changes:
        raise UsageError("Option `asOf` cannot be used in mode changes", hint="Use `toRevision`")
    first, last = options.from_revision, options.to_revision
    if first is not None and last is not None and first > last:
        raise UsageError(f"Option `fromRevision`: {first} is greater than `toRevision`, {last}")
    if options.starting_time and options.starting_revision != "earliest":
        raise UsageError("Options `startingRevision` and `startingTime` cannot be combined")
    if options.domain and options.api_prefix:
        raise UsageError("Options `domain` and `apiPrefix` cannot be combined")


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(value)
    return format_duration(value) if isinstance(value, timedelta) else str(value)


# -- forms of values -------------------------------------------------------------------------------------


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _filters(text: str) -> tuple[str, ...]:
    return tuple(check_filter(word) for word in _words(text))


def _switch(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise UsageError(f"`{text}` is neither true nor false")
    return text.lower() == "true"


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 0 < int(text) < 2**63):
        raise UsageError(f"`{text}` is not a positive number")
    return int(text)


def _duration(text: str) -> timedelta:
    duration = parse_duration(text)
    if duration <= timedelta():
        raise UsageError("It must be greater than 0")
    return duration


def _url(text: str) -> str:
    addresses(text)
    if redact(text) != text:
        raise UsageError("The URL must not have a user or password: Spark would store it", hint=_SECRET["password"])
    return text


def _start(text: str) -> str:
    if text.lower() in ("earliest", "latest"):
        return text.lower()
    try:
        return str(_number(text))
    except UsageError:
        raise UsageError(f"`{text}` is not earliest, latest or a positive revision") from None


def _time(text: str) -> str:
    parse_time(text)
    return text


def _one_of(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text.lower() in words:
            return text.lower()
        raise UsageError(f"`{text}` is not one of {quoted(words)}", hint=did_you_mean(text, words) or None)

    return read


# -- the table -------------------------------------------------------------------------------------------

OPTIONS = (
    Option("bucket", Purpose.CONNECTION, check_bucket, "NAME", "Bucket, mirror or aggregate; required"),
    Option("context", Purpose.CONNECTION, str, "NAME", "Context on the machine that runs the task"),
    Option("url", Purpose.CONNECTION, _url, "URL", "Server URL, or several separated by commas"),
    Option("user", Purpose.CONNECTION, str, "NAME", "User name, with `passwordFile`"),
    Option("passwordFile", Purpose.CONNECTION, str, "FILE", "File with the password"),
    Option("tokenFile", Purpose.CONNECTION, str, "FILE", "File with the token"),
    Option("creds", Purpose.CONNECTION, str, "FILE", "Credentials file"),
    Option("nkey", Purpose.CONNECTION, str, "FILE", "File with the NKey seed"),
    Option("tlsCert", Purpose.CONNECTION, str, "FILE", "Client certificate"),
    Option("tlsKey", Purpose.CONNECTION, str, "FILE", "Private key of the client certificate"),
    Option("tlsCa", Purpose.CONNECTION, str, "FILE", "Certificates of the authorities for the server's certificate"),
    Option("tlsFirst", Purpose.CONNECTION, _switch, "true|false", "Use TLS before the server's greeting"),
    Option("domain", Purpose.CONNECTION, str, "NAME", "Name of the JetStream domain"),
    Option("apiPrefix", Purpose.CONNECTION, str, "PREFIX", "Prefix of the JetStream API, instead of a domain"),
    Option("inboxPrefix", Purpose.CONNECTION, str, "PREFIX", "Prefix of reply subjects"),
    Option("timeout", Purpose.CONNECTION, _duration, "DURATION", "Timeout of a request; default 5s"),
    Option(
        "mode", Purpose.READ, _one_of("latest", "history", "changes"), "latest|history|changes",
        "One row per key, all stored revisions, or a range of stored revisions",
    ),
    Option("columns", Purpose.READ, _words, "NAME,...", "Columns to read, instead of the first five"),
    Option("filter", Purpose.READ, _filters, "FILTER,...", "Filters; only matching keys are read"),
    Option("includeDeleted", Purpose.READ, _switch, "true|false", "In mode latest, include delete markers"),
    Option("fromRevision", Purpose.READ, _number, "N", "In mode changes, first revision; default the oldest"),
    Option("toRevision", Purpose.READ, _number, "N", "In mode changes, last revision; default the newest"),
    Option(
        "asOf", Purpose.READ, _number, "N",
        "In modes latest and history, revision to read as of, as far as the history goes back; default the last",
    ),
    Option("partitions", Purpose.READ, _number, "N", "Maximum number of tasks"),
    Option(
        "onEvicted", Purpose.READ, _one_of("newer", "fail"), "newer|fail",
        "Behaviour for entries overwritten before they are read: take their newer state, or fail",
    ),
    Option(
        "writeMode", Purpose.WRITE, _one_of("put", "create", "update"), "put|create|update",
        "Write unconditionally, only keys that do not exist, or only at the revision in the column `revision`",
    ),
    Option("ifDifferent", Purpose.WRITE, _switch, "true|false", "Skip rows whose value the bucket already has"),
    Option("deadLetter", Purpose.WRITE, str, "PATH", "Folder for rows that cannot be written, instead of failing"),
    Option(
        "writeId", Purpose.WRITE, str, "TEXT",
        "Id of a write: the same query run again with the same id continues an interrupted write",
    ),
    Option(
        "startingRevision", Purpose.STREAM, _start, "earliest|latest|N",
        "Start of a query without a checkpoint: existing entries, new writes, or a revision",
    ),
    Option(
        "startingTime", Purpose.STREAM, _time, "TIME",
        "Start of a query as a time, to the microsecond: RFC 3339, or -15m (ago)",
    ),
    Option("maxRevisionsPerTrigger", Purpose.STREAM, _number, "N", "Maximum number of revisions in a batch"),
    Option(
        "failOnDataLoss", Purpose.STREAM, _switch, "true|false",
        "Fail if revisions were lost before they were read, and newer ones of their keys did not replace them",
    ),
)  # fmt: skip

_BY_NAME = {option.name.lower(): option for option in OPTIONS}
_SECRET = {
    "password": "Give `passwordFile` or a `context`",
    "token": "Give `tokenFile` or a `context`",
    "seed": "Give `nkey`, `creds` or a `context`",
    "secret": "Give a file that contains it, or a `context`",
}
_SPARKS_OWN = {
    "path", "checkpointlocation", "outputmode", "queryname", "serialization.format",
    "provider", "location", "owner", "comment", "collation", "external", "is_managed_location", "table_type",
}  # fmt: skip
"""Options that Spark adds itself, for queries and for tables of its catalog."""
_AGAIN = "option."
"""Prefix of the options of a table, which also come without it."""
