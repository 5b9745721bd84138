"""Options of the data source `nats-kv`: one table, from which they are read, checked and documented. [pure]

Spark passes option names in lower case, so any case is accepted. Options of all purposes are known everywhere: a table
of Spark's catalog is read and written with the same ones. A new option is a field of SourceOptions. The fields of the
connection are named after the options of the command line; only `url` is `--server` there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from datetime import timedelta
from enum import StrEnum
from textwrap import fill
from typing import TYPE_CHECKING, Any

from kvctl.errors import UsageError
from kvctl.kv.names import check_bucket, check_filter
from kvctl.phrases import quoted
from kvctl.suggest import did_you_mean
from kvctl.units import format_duration, parse_duration, parse_time
from kvctl.urls import addresses, redact

if TYPE_CHECKING:
    from kvctl.pipeline.tables.storage import TablePlace

WIDTH = 78
HEADING = "## Options\n"
_SECTION = re.compile(rf"(?<=^{HEADING}).*?(?=^## )", re.DOTALL | re.MULTILINE)
FILE = "FILE"
"""Form of a value that is the path of a file."""


class Purpose(StrEnum):
    """Purpose of an option; the order is that of the documentation."""

    CONNECTION = "Connection"
    READ = "Reading"
    WRITE = "Writing"
    STREAM = "Streaming"


# -- forms of values -------------------------------------------------------------------------------------


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _buckets(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(check_bucket(word) for word in _words(text)))


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise UsageError(f"`{text}` is not a regular expression: {error}") from None
    return text


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


# -- the table -------------------------------------------------------------------------------------------


def _option(purpose: Purpose, form: str, help: str, read: Callable[[str], Any] = str, *, default: Any = None) -> Any:
    """Return the field of an option: placeholder of its value, help in one sentence, and parser from text."""
    return field(default=default, metadata={"purpose": purpose, "form": form, "help": help, "read": read})


def _one_of(purpose: Purpose, words: str, help: str) -> Any:
    """Return the field of an option that has one of the words, separated by `|`; the first one is the default."""
    choices = words.split("|")

    def read(text: str) -> str:
        if text.lower() in choices:
            return text.lower()
        raise UsageError(f"`{text}` is not one of {quoted(choices)}", hint=did_you_mean(text, choices) or None)

    return _option(purpose, words, help, read, default=choices[0])


def _flag(purpose: Purpose, help: str, *, default: bool = False) -> Any:
    return _option(purpose, "true|false", help, _switch, default=default)


_CONNECTION, _READ, _WRITE, _STREAM = Purpose


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Parsed options. Frozen and picklable; has names and paths, never a secret."""

    bucket: str = _option(
        _CONNECTION,
        "NAME",
        "Bucket, mirror or aggregate; required, except for reads of several",
        check_bucket,
        default="",
    )
    context: str | None = _option(_CONNECTION, "NAME", "Context on the machine that runs the task")
    url: str | None = _option(_CONNECTION, "URL", "Server URL, or several separated by commas", _url)
    user: str | None = _option(_CONNECTION, "NAME", "User name, with `passwordFile`")
    password_file: str | None = _option(_CONNECTION, FILE, "File with the password")
    token_file: str | None = _option(_CONNECTION, FILE, "File with the token")
    creds: str | None = _option(_CONNECTION, FILE, "Credentials file")
    nkey: str | None = _option(_CONNECTION, FILE, "File with the NKey seed")
    tls_cert: str | None = _option(_CONNECTION, FILE, "Client certificate")
    tls_key: str | None = _option(_CONNECTION, FILE, "Private key of the client certificate")
    tls_ca: str | None = _option(_CONNECTION, FILE, "Certificates of the authorities for the server's certificate")
    tls_first: bool = _flag(_CONNECTION, "Use TLS before the server's greeting")
    domain: str | None = _option(_CONNECTION, "NAME", "Name of the JetStream domain")
    api_prefix: str | None = _option(_CONNECTION, "PREFIX", "Prefix of the JetStream API, instead of a domain")
    inbox_prefix: str | None = _option(_CONNECTION, "PREFIX", "Prefix of reply subjects")
    timeout: timedelta | None = _option(  # noqa: RUF009 - a field, not a shared value
        _CONNECTION, "DURATION", "Timeout of a request; default 30s", _duration
    )

    mode: str = _one_of(
        _READ, "latest|history|changes", "One row per key, all stored revisions, or a range of stored revisions"
    )
    buckets: tuple[str, ...] = _option(_READ, "NAME,...", "Several buckets, instead of one", _buckets, default=())
    bucket_pattern: str | None = _option(
        _READ,
        "REGEX",
        "Regular expression; all buckets and aggregates with such a name are read, mirrors are not",
        _pattern,
    )
    columns: tuple[str, ...] = _option(
        _READ, "NAME,...", "Columns to read, instead of the first five", _words, default=()
    )
    include_headers: bool = _flag(_READ, "Add the column `headers`")
    filter: tuple[str, ...] = _option(_READ, "FILTER,...", "Filters; only matching keys are read", _filters, default=())
    include_deleted: bool = _flag(_READ, "In mode latest, include delete markers")
    from_revision: int | None = _option(_READ, "N", "In mode changes, first revision; default the oldest", _number)
    to_revision: int | None = _option(_READ, "N", "In mode changes, last revision; default the newest", _number)
    as_of: int | None = _option(
        _READ,
        "N",
        "In modes latest and history, revision to read as of, as far as the history goes back; default the last",
        _number,
    )
    ending_time: str | None = _option(
        _READ, "TIME", "Time at which a read ends, exclusive, instead of a revision: RFC 3339, or -15m (ago)", _time
    )
    partitions: int | None = _option(_READ, "N", "Maximum number of tasks, and at least one for each bucket", _number)
    min_partitions: int | None = _option(
        _READ, "N", "Minimum number of tasks of a stream, and of a read that ranges of revisions divide", _number
    )
    on_evicted: str = _one_of(
        _READ, "newer|fail", "Behaviour for entries overwritten before they are read: take their newer state, or fail"
    )

    write_mode: str = _one_of(
        _WRITE,
        "put|create|update",
        "Write unconditionally, only keys that do not exist, or only at the revision in the column `revision`",
    )
    if_different: bool = _flag(_WRITE, "Skip rows whose value the bucket already has")
    dead_letter: str | TablePlace | None = _option(  # noqa: RUF009 - a field, not a shared value
        _WRITE, "URI", "Folder or URL for rows that cannot be written, instead of failing"
    )
    write_id: str | None = _option(
        _WRITE, "TEXT", "Id of a write: the same query run again with the same id continues an interrupted write"
    )

    starting_revision: str = _option(
        _STREAM,
        "earliest|latest|N",
        "Start of a query without a checkpoint: existing entries, new writes, or a revision",
        _start,
        default="earliest",
    )
    starting_time: str | None = _option(
        _STREAM,
        "TIME",
        "Start of a query, and of a read in mode changes, as a time, to the microsecond: RFC 3339, or -15m (ago)",
        _time,
    )
    max_revisions_per_trigger: int | None = _option(_STREAM, "N", "Maximum number of revisions in a batch", _number)
    min_revisions_per_trigger: int | None = _option(
        _STREAM, "N", "Minimum number of new revisions for a batch, unless `maxTriggerDelay` is over", _number
    )
    max_trigger_delay: timedelta = _option(  # noqa: RUF009 - a field, not a shared value
        _STREAM,
        "DURATION",
        "Time after which fewer revisions than `minRevisionsPerTrigger` are read, too",
        _duration,
        default=timedelta(minutes=15),
    )
    fail_on_data_loss: bool = _flag(
        _STREAM,
        "Fail if revisions were lost before they were read, and newer ones of their keys did not replace them",
        default=True,
    )

    @property
    def several(self) -> bool:
        """True if buckets are read that `bucket` does not name."""
        return bool(self.buckets or self.bucket_pattern)

    def shared(self, buckets: int) -> SourceOptions:
        """Return the options for each of the buckets, which share the tasks."""
        most, least = self.partitions, self.min_partitions
        return replace(self, partitions=most and max(most // buckets, 1), min_partitions=least and -(-least // buckets))


@dataclass(frozen=True, slots=True)
class Option:
    """One row of the table: the option's name, purpose, form of the value, help, parser and default."""

    name: str
    field: str
    """Field of SourceOptions."""
    purpose: Purpose
    form: str
    help: str
    read: Callable[[str], Any]
    default: Any

    @classmethod
    def of(cls, field: Field[Any]) -> Option:
        """Return the option of a field."""
        first, *words = field.name.split("_")
        return cls(
            name=first + "".join(map(str.title, words)), field=field.name, default=field.default, **field.metadata
        )

    @property
    def flag(self) -> str:
        """Name of the value on the command line."""
        return "server" if self.field == "url" else self.field


OPTIONS = tuple(map(Option.of, fields(SourceOptions)))
CONNECTION = tuple(option for option in OPTIONS if option.purpose is _CONNECTION and option.field != "bucket")
"""Options that the command line has, too."""

_BY_NAME = {option.name.lower(): option for option in OPTIONS}
_SECRET = {
    "password": "Give `passwordFile` or a `context`",
    "token": "Give `tokenFile` or a `context`",
    "seed": "Give `nkey`, `creds` or a `context`",
    "secret": "Give a file that contains it, or a `context`",
}
_SPARKS_OWN = (
    "path checkpointlocation outputmode queryname serialization.format provider location owner comment collation "
    "external is_managed_location table_type"
).split()
"""Options that Spark adds itself, for queries and for tables of its catalog."""
_AGAIN = "option."
"""Prefix of the options of a table, which also come without it."""


# -- reading and writing them ---------------------------------------------------------------------------------


def parse(given: Mapping[str, str]) -> SourceOptions:
    """Parse the options passed to Spark. Raises UsageError, which names the option, or the most similar one."""
    values: dict[str, Any] = {}
    for name, text in given.items():
        option = _named(name)
        if option is not None:
            values[option.field] = _value(option, text)
    named = [name for name in ("bucket", "buckets", "bucket_pattern") if name in values]
    if not named:
        raise UsageError("The option `bucket` is missing", hint=_NO_BUCKET)
    if len(named) > 1:
        raise UsageError("Only one of the options `bucket`, `buckets` and `bucketPattern` can be set")
    options = SourceOptions(**values)
    _check_together(options)
    return options


_NO_BUCKET = (
    'Add `.option("bucket", NAME)`; in SQL `with (bucket = ...)` after the table name, '
    "as Spark does not pass catalog properties to a source"
)


def given_as(options: SourceOptions) -> dict[str, str]:
    """Return the options as a user writes them, without defaults: `parse` reads them back."""
    values = ((option, getattr(options, option.field)) for option in OPTIONS)
    return {option.name: _text(value) for option, value in values if value != option.default}


def from_flags(flags: Mapping[str, object], absolute: Callable[[str], str]) -> dict[str, str]:
    """Return connection options of the command line as options.

    Paths are made `absolute`, as tasks may have another working directory.
    """
    given = ((option, flags.get(option.flag)) for option in CONNECTION)
    return {o.name: absolute(str(value)) if o.form == FILE else _text(value) for o, value in given if value}


def as_flags(options: SourceOptions) -> dict[str, object]:
    """Return the connection as options of the command line, for `contexts.resolve`."""
    return {option.flag: getattr(options, option.field) for option in CONNECTION}


def without_flags(text: str) -> str:
    """Return a message about options of the command line as one about options: `tlsCert` for `--tls-cert`."""
    for option in sorted(CONNECTION, key=lambda option: -len(option.flag)):
        text = text.replace(f"--{option.flag.replace('_', '-')}", option.name)
    return text


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
    if options.several:
        _check_several(options)
    if options.ending_time and (last or options.as_of):
        raise UsageError(f"Options `endingTime` and `{'toRevision' if last else 'asOf'}` cannot be combined")
    if options.starting_time and first:
        raise UsageError("Options `startingTime` and `fromRevision` cannot be combined")
    least, most = options.min_partitions, options.partitions
    if least and most and least > most:
        raise UsageError(f"Option `minPartitions`: {least} is greater than `partitions`, {most}")
    least, most = options.min_revisions_per_trigger, options.max_revisions_per_trigger
    if least and most and least > most:
        raise UsageError(f"Option `minRevisionsPerTrigger`: {least} is greater than `maxRevisionsPerTrigger`, {most}")
    if options.starting_time and options.starting_revision != "earliest":
        raise UsageError("Options `startingRevision` and `startingTime` cannot be combined")
    if options.domain and options.api_prefix:
        raise UsageError("Options `domain` and `apiPrefix` cannot be combined")


def _check_several(options: SourceOptions) -> None:
    """Raises UsageError for a revision, as those of several buckets have nothing in common."""
    numbers = {
        "fromRevision": options.from_revision,
        "toRevision": options.to_revision,
        "asOf": options.as_of,
        "startingRevision": options.starting_revision not in ("earliest", "latest"),
    }
    for name in (name for name, value in numbers.items() if value):
        raise UsageError(
            f"Option `{name}` is a revision of one bucket and cannot be used with several",
            hint="Use `startingTime` and `endingTime`",
        )


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(value)
    return format_duration(value) if isinstance(value, timedelta) else str(value)


# -- documentation ---------------------------------------------------------------------------------------


def with_option_list(topic: str) -> str:
    """Return the help topic `pipeline` with its section of options generated from the table."""
    listed = f"\n{option_list()}\n"
    return _SECTION.sub(lambda _: listed, topic)


def option_list() -> str:
    """Return all options by purpose: name, form of the value, help, and the default, if any."""
    return "\n".join(_purpose(purpose) for purpose in Purpose)


def _purpose(purpose: Purpose) -> str:
    items = [_item(option) for option in OPTIONS if option.purpose is purpose]
    return f"{purpose}:\n\n{''.join(items)}"


def _item(option: Option) -> str:
    shown = isinstance(option.default, str | bool | timedelta) and option.default != ""
    default = f"; default {_text(option.default)}" if shown else ""
    text = f"`{option.name}` {option.form}: {option.help[0].lower()}{option.help[1:]}{default}."
    return fill(text, WIDTH, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False) + "\n"
