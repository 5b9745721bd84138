"""Answers of servers: a malformed one is a ServerError that names its request, wherever it is read. [pure]"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, NamedTuple

from kvctl.errors import KvctlError, ServerError
from kvctl.jetstream import config_text
from kvctl.jetstream.config_text import FLAG, NUMBER, TEXT, TIME, WORDS
from kvctl.phrases import one_line
from kvctl.units import parse_time
from kvctl.wire import MALFORMED

LARGEST = 1 << 64
"""Servers count in 64 bits."""
COUNTS, NAMES = "map of numbers", "list or map of names"
_NULLABLE = (COUNTS, NAMES, WORDS)
"""Kinds that servers write as null when they are empty, as they do objects and lists."""


class answer_to:  # a context manager, faster than a generator
    """Context in which an answer is read: what is malformed in it raises ServerError with the request's subject."""

    __slots__ = ("_subject",)

    def __init__(self, subject: str) -> None:
        self._subject = subject

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if isinstance(error, MALFORMED):
            raise malformed(self._subject, error) from None


class MalformedAnswer(ServerError):
    """An answer that is not as expected: what the request writes may have been stored."""


def malformed(subject: str, error: BaseException | str) -> MalformedAnswer:
    """Build the error for a malformed answer to a request."""
    text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    return MalformedAnswer(
        f"The server's answer to `{subject}` is malformed: {one_line(text)[:200]}",
        hint="The server is not a NATS server that kvctl knows, or something between changed its answer",
    )


class _Shape(NamedTuple):
    """An object with fields that it needs, and others; unknown ones are ignored."""

    needs: Mapping[str, Any]
    others: Mapping[str, Any] = {}


_SOURCE = {"name": TEXT, "lag": NUMBER, "active": NUMBER, "seq": NUMBER, "filter_subject": TEXT}
_SOURCE_STATE = _Shape(
    {},
    {
        **_SOURCE,
        "error": _Shape({}, {"code": NUMBER, "err_code": NUMBER, "description": TEXT}),
        "external": _Shape({}, {"api": TEXT, "deliver": TEXT}),
        "subject_transforms": [_Shape({}, {"src": TEXT, "dest": TEXT})],
    },
)
_PEER = _Shape({"name": TEXT}, {"current": FLAG, "offline": FLAG, "active": NUMBER, "lag": NUMBER})
_CLUSTER = _Shape({}, {"name": TEXT, "leader": TEXT, "replicas": [_PEER]})
_STATE = _Shape(
    {**dict.fromkeys("messages bytes first_seq last_seq consumer_count".split(), NUMBER), "first_ts": TIME}
    | {"last_ts": TIME},
    {"num_subjects": NUMBER, "num_deleted": NUMBER, "subjects": COUNTS},
)
_CONFIG = _Shape({"name": TEXT}, config_text.STREAM)
_STREAM = _Shape(
    {"config": _CONFIG, "created": TIME, "state": _STATE},
    {
        "cluster": _CLUSTER,
        "mirror": _SOURCE_STATE,
        "sources": [_SOURCE_STATE],
        "alternates": [_Shape({"name": TEXT, "cluster": TEXT}, {"domain": TEXT})],
        "did_create": FLAG,
        "ts": TIME,
        "total": NUMBER,
    },
)
_PLACE = _Shape({"consumer_seq": NUMBER, "stream_seq": NUMBER}, {"last_active": TIME})
_PLACES = {"delivered": _PLACE, "ack_floor": _PLACE}
_COUNTED = dict.fromkeys("num_ack_pending num_redelivered num_waiting num_pending".split(), NUMBER)
_CONSUMER = _Shape(
    {"name": TEXT, "created": TIME, "config": _Shape({}, config_text.CONSUMER), **_PLACES} | _COUNTED,
    {"cluster": _CLUSTER, "push_bound": FLAG, "paused": FLAG, "pause_remaining": NUMBER, "ts": TIME},
)
_PAGE = {"total": NUMBER, "limit": NUMBER, "missing": NAMES, "offline": NAMES}
_STORED = _Shape({"subject": TEXT, "seq": NUMBER, "time": TIME}, {"hdrs": TEXT, "data": TEXT})
_LIMITS = dict.fromkeys("max_memory max_storage max_streams max_consumers".split(), NUMBER)
_USED = dict.fromkeys("memory storage reserved_memory reserved_storage streams consumers".split(), NUMBER)
_USAGE = {**_USED, "limits": _Shape({}, _LIMITS)}
_ANSWERS = {
    **dict.fromkeys(("STREAM.CREATE", "STREAM.UPDATE", "STREAM.INFO"), _STREAM),
    **dict.fromkeys(("CONSUMER.CREATE", "CONSUMER.INFO"), _CONSUMER),
    "STREAM.LIST": _Shape({}, {**_PAGE, "streams": [_STREAM]}),
    "STREAM.NAMES": _Shape({}, {**_PAGE, "streams": [TEXT]}),
    **dict.fromkeys(("STREAM.DELETE", "CONSUMER.DELETE", "STREAM.MSG.DELETE"), _Shape({"success": FLAG})),
    "STREAM.PURGE": _Shape({"purged": NUMBER}),
    "STREAM.MSG.GET": _Shape({"message": _STORED}),
    "STREAM.SNAPSHOT": _Shape({"config": _CONFIG, "state": _STATE}),
    "STREAM.RESTORE": _Shape({"deliver_subject": TEXT}),
    "CONSUMER.LIST": _Shape({}, {**_PAGE, "consumers": [_CONSUMER]}),
    "CONSUMER.NAMES": _Shape({}, {**_PAGE, "consumers": [TEXT]}),
    "CONSUMER.PAUSE": _Shape({"paused": FLAG}, {"pause_until": TIME, "pause_remaining": NUMBER}),
    "INFO": _Shape({}, {**_USAGE, "domain": TEXT, "tiers": {}, "api": _Shape({}, {"total": NUMBER, "errors": NUMBER})}),
}
"""Answers of the JetStream API by the first words of the subject, with the fields that kvctl reads."""
_ERROR = _Shape({}, {"code": NUMBER, "err_code": NUMBER, "description": TEXT})
_NAMED = ("STREAM.CREATE", "STREAM.UPDATE", "STREAM.INFO")


def parsed(endpoint: str, payload: bytes) -> dict[str, Any]:
    """Parse an answer of the JetStream API, whose fields have the expected types; it may have an `error`.

    Raises ValueError and other MALFORMED errors.
    """
    answer = json.loads(payload)
    if not isinstance(answer, dict):
        raise ValueError("it is not an object")
    if answer.get("error"):
        _check(answer["error"], _ERROR, "error")
        return answer
    words = endpoint.split(".")
    kind = ".".join(words[: 3 if words[1:2] == ["MSG"] else 2])
    shape = _ANSWERS.get(kind)
    if shape and not _fits(answer, shape):
        _check(answer, shape, "")
    if kind in _NAMED and answer["config"]["name"] != words[2]:
        raise ValueError(f"it is about stream `{answer['config']['name']}`")
    if kind == "INFO":
        for name, usage in (answer.get("tiers") or {}).items():
            _check(usage, _Shape({}, _USAGE), f"tiers.{name}")
    return answer


def check_snapshot(document: dict[str, Any]) -> None:
    """Check configuration and state of a stream in a file. Raises MALFORMED errors."""
    _check(document, _ANSWERS["STREAM.SNAPSHOT"], "")


def check_config(config: Any) -> None:
    """Check a stream configuration in a file. Raises MALFORMED errors."""
    _check(config, _CONFIG, "")


def _fits(value: Any, kind: Any) -> bool:
    """Return False if `_check` has to find what is wrong; many times faster, for listings of thousands."""
    of = type(kind)
    if of is str:
        return value.isascii() if kind == TEXT and type(value) is str else _SIMPLE.get(kind, _is_number)(value)
    if of is _Shape:
        if type(value) is not dict:
            return False
        for name, item in kind.needs.items():
            if name not in value or not _fits(value[name], item):
                return False
        kind = kind.others
    elif of is list:
        return type(value) is list and all(_fits(item, kind[0]) for item in value)
    elif of is tuple:
        return type(value) is str and value.isascii()
    if type(value) is not dict:
        return False
    return all(name not in kind or _fits(item, kind[name]) for name, item in value.items())


_UTC = re.compile(r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|1\d|2[0-8])T([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?Z", re.ASCII)


def _is_utc(value: Any) -> bool:
    return isinstance(value, str) and _UTC.fullmatch(value) is not None


def _are_words(value: Any) -> bool:
    return isinstance(value, dict) and {*map(type, value.values())} <= {str} and "".join(value.values()).isascii()


def _is_left(value: Any) -> bool:
    return False


_SIMPLE: dict[str, Callable[[Any], bool]] = {
    FLAG: lambda value: isinstance(value, bool),
    TIME: _is_utc,
    WORDS: _are_words,
    **dict.fromkeys((TEXT, COUNTS, NAMES), _is_left),
}
"""Checks of kinds that are not numbers; what is not simple is left to `_check`."""


def _is_number(value: Any) -> bool:
    return type(value) is int and -LARGEST < value < LARGEST


def _check(value: Any, kind: Any, path: str) -> None:
    if isinstance(kind, _Shape):
        _expect(isinstance(value, dict), path, "an object")
        for name, item in kind.needs.items():
            _expect(name in value, f"{path}.{name}", "there")
            _check(value[name], item, f"{path}.{name}")
        _check_fields(value, kind.others, path)
    elif isinstance(kind, Mapping):
        _expect(isinstance(value, dict), path, "an object")
        _check_fields(value, kind, path)
    elif isinstance(kind, list):
        _expect(isinstance(value, list), path, "a list")
        for item in value:
            _check(item, kind[0], path)
    elif kind in (COUNTS, WORDS):
        _expect(isinstance(value, dict), path, "an object")
        _expect({*map(type, value.values())} <= {int if kind == COUNTS else str}, path, kind)
        "".join([*value, *(value.values() if kind == WORDS else ())]).encode()  # no lone surrogates
    elif kind == NAMES:
        _expect(isinstance(value, dict | list), path, kind)
        "".join(value).encode()
    elif kind == FLAG:
        _expect(isinstance(value, bool), path, kind)
    elif isinstance(kind, tuple) or kind in (TIME, TEXT):
        _expect(isinstance(value, str), path, "text")
        value.encode()
        if kind == TIME:
            _check_time(value, path)
    else:  # numbers of all kinds
        _expect(type(value) is int and -LARGEST < value < LARGEST, path, "a whole number of 64 bits")


def _check_fields(value: dict[str, Any], kinds: Mapping[str, Any], path: str) -> None:
    for name, item in value.items():
        kind = kinds.get(name)
        if kind is not None and not (item is None and (not isinstance(kind, str) or kind in _NULLABLE)):
            _check(item, kind, f"{path}.{name}")


def _check_time(text: str, path: str) -> None:
    with suppress(KvctlError):
        _expect(text[:1].isdigit(), path, "a time")
        parse_time(text)
        return
    _expect(False, path, "a time")


def _expect(fits: bool, path: str, what: str) -> None:
    if not fits:
        raise ValueError(f"{path.removeprefix('.') or 'it'} is not {what}")
