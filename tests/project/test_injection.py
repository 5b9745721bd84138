"""Names, subjects and headers from outside never become commands on the wire, whatever public entry they come by."""

import asyncio
import inspect
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvctl
from kvctl import Aggregate, BucketConfig, Client, Context, External, Mirror, Origin, Republish, Transaction
from kvctl.errors import KvctlError, OutcomeUnknown, UnreachableError, UsageError
from kvctl.tables.changes import Version
from kvctl.tokens import check_filter_subject, check_header, check_name, check_subject, shown, unsafe
from kvctl.wire import decode_headers, encode_headers
from tests.support.wiretap import SUBJECT, Wiretap, published

ATTACK = "x r 0\r\n\r\nPUB evil.{} 4\r\nevil\r\nPUB y"
NASTY = [ATTACK, "x" * 5000, *"a b|a\tb|a\nb|a\rb|a\0b|a..b|.a|a.||a.b|*|>|a.>.b|\udcff|é\x85".split("|")]
FILLERS: dict[str, Any] = dict.fromkeys("branch ref source dest before one other".split(), "main")
FILLERS |= {"key": "k", "prefix": "k", "value": b"v", "keys": ["k"], "changes": {"k": b"v"}, "identity": None}
FILLERS |= {"name": "nowhere", "config": "nowhere", "revision": 1, "moment": 1, "until_ns": 1, "origin": None}
FILLERS |= {"stream": "S", "bucket": "B", "subject": "s.x", "destination": "t.>", "message": "m", "owner": "me"}
FILLERS |= {"api": "$JS.hub.API", "ttl": timedelta(seconds=30), "version": Version(0, 0, 1)}
"""Arguments for required parameters, by name."""
_FILLER_OF_KIND = {"bytes": b"k", "Sequence[bytes]": [b"k"], "K": b"k", "Sequence[K]": [b"k"], "V": b"v"}
TOLD = set("behind entry same_as source_as_own record commit check update_bucket open_typed counts entries_at".split())
"""Methods that take what other entries made, or no text."""


class Entries:
    """Every public callable with a parameter for text, on objects that exist."""

    def __init__(self, client: Client, world: dict[str, Any]) -> None:
        self._client = client
        self._world = world

    def __iter__(self) -> Iterator[tuple[str, Callable[..., Any], inspect.Parameter]]:
        for name, thing in self._world.items():
            for method, function in inspect.getmembers(thing, callable):
                if method.startswith("_") or method in TOLD:
                    continue
                for parameter in inspect.signature(function).parameters.values():
                    if "str" in str(parameter.annotation) and _fillable(function, parameter):
                        yield f"{name}.{method}({parameter.name})", function, parameter

    def by_hand(self) -> dict[str, Callable[[str], Any]]:
        """What has its text in objects, or among the server's own settings."""
        client, stream = self._client, self._world["stream"]
        jetstream = client.jetstream

        def mirror(**fields: Any) -> Any:
            return kvctl.create_mirror(client, Mirror("M", Origin("B", **fields)), wait_for=None)

        def aggregate(**fields: Any) -> Any:
            return kvctl.create_aggregate(client, Aggregate("A", (Origin(**{"bucket": "B", **fields}),)), wait_for=None)

        return {
            "create_bucket(config)": client.create_bucket,
            "create_or_update_bucket(config)": client.create_or_update_bucket,
            "BucketConfig(republish)": lambda text: client.create_bucket("X", republish=Republish(text, "t.>")),
            "BucketConfig(republish to)": lambda text: client.create_bucket("X", republish=Republish("$KV.X.>", text)),
            "BucketConfig(description)": lambda text: client.create_bucket("X", description=text),
            "BucketConfig(metadata)": lambda text: client.create_bucket("X", metadata={text: text}),
            "BucketConfig(tags)": lambda text: client.create_bucket("X", cluster=text, tags=(text,)),
            "update_bucket": lambda text: client.update_bucket(BucketConfig(text)),
            "create_stream(subjects)": lambda text: jetstream.create_stream("X", subjects=[text]),
            "create_stream(mirror)": lambda text: jetstream.create_stream("X", mirror={"name": text}),
            "create_consumer(filter)": lambda text: stream.create_consumer("X", filter_subject=text),
            "create_consumer(filters)": lambda text: stream.create_consumer("X", filter_subjects=[text, "s.y"]),
            "create_consumer(durable)": lambda text: stream.create_consumer(durable_name=text),
            "create_consumer(deliver)": lambda text: stream.create_consumer("X", deliver_subject=text),
            "Stream(name).info": lambda text: kvctl.Stream(client.api, text).info(),
            "Consumer(name).fetch": lambda text: kvctl.Consumer(client.api, "S", text).fetch(1, no_wait=True),
            "Consumer(stream).next": lambda text: kvctl.Consumer(client.api, text, "C").next(),
            "Mirror(name)": lambda text: kvctl.create_mirror(client, Mirror(text, Origin("B")), wait_for=None),
            "Origin(bucket)": lambda text: aggregate(bucket=text),
            "Origin(stream)": lambda text: aggregate(stream=text),
            "Origin(keys)": lambda text: aggregate(keys=(text,)),
            "Origin(mirror keys)": lambda text: mirror(keys=(text,)),
            "Origin(prefix)": lambda text: aggregate(prefix=text),
            "Origin(maps)": lambda text: aggregate(maps=((text, text),)),
            "External(api)": lambda text: mirror(external=External(text)),
            "External(deliver)": lambda text: mirror(external=External("$JS.hub.API", text)),
            "External(domain)": lambda text: mirror(external=External.of_domain(text)),
            "Transaction(key)": lambda text: self._world["bucket"].commit(Transaction().put(text, b"v")),
            "Transaction(condition)": lambda text: self._world["bucket"].commit(
                Transaction().expect(text, absent=True).put("k", b"v")
            ),
            "put_many": lambda text: self._world["bucket"].put_many([(text, b"v")]),
            "Bucket(stream).put": lambda text: client.bucket("B", stream=text).get("k"),
            "Bucket(prefix).put": lambda text: client.bucket("B", prefix=text).put("k", b"v"),
            "tables.create": client_tables(client).create,
            "repositories.create": kvctl.Repositories(client).create,
            "request(subject)": lambda text: client.connection.request(text),
            "request(header)": lambda text: client.connection.request("a", header=text.encode(errors="replace")),
            "publish(subject)": lambda text: client.connection.publish(text),
            "publish(reply)": lambda text: client.connection.publish("a", reply=text),
            "publish(header)": lambda text: client.connection.publish("a", header=encode_headers({"A": text})),
            "publish(header name)": lambda text: client.connection.publish("a", header=encode_headers({text: "a"})),
        }


def client_tables(client: Client) -> kvctl.Tables:
    return kvctl.Tables(client)


@pytest.fixture
async def tapped(own_server):
    """A client whose bytes are kept, and one of each thing that has methods."""
    async with (
        Wiretap(own_server.port) as tap,
        kvctl.connect(Context(url=tap.url, timeout=timedelta(seconds=60))) as it,
    ):
        world: dict[str, Any] = {
            "client": it,
            "jetstream": it.jetstream,
            "bucket": await it.create_bucket("B", history=5, marker_ttl=timedelta(hours=1), atomic=True),
            "stream": await it.jetstream.create_stream("S", subjects=["s.>"]),
            "tables": kvctl.Tables(it),
            "table": await kvctl.Tables(it).create("T", partitions=1),
            "repositories": kvctl.Repositories(it),
            "repository": await kvctl.Repositories(it).create("R"),
        }
        world["consumer"] = await world["stream"].create_consumer("C")
        world["lease"] = world["bucket"]
        yield tap, it, world


async def outcome(call: Callable[[], Any]) -> KvctlError | None:
    """The error that a call ends with; what it gives is read a little."""
    try:
        async with asyncio.timeout(0.3):
            await _used(call())
    except TimeoutError:
        return None
    except KvctlError as error:
        return error
    return None


async def _used(found: Any) -> None:
    if inspect.isawaitable(found):
        found = await found
    if hasattr(found, "__aenter__"):
        async with found as opened:
            if hasattr(opened, "__aiter__"):
                await _used(aiter(opened))
    elif hasattr(found, "__anext__"):
        with suppress(StopAsyncIteration):
            await anext(aiter(found))


def _arguments(function: Callable[..., Any], chosen: inspect.Parameter, text: str) -> tuple[list[Any], dict[str, Any]]:
    """Arguments with the text in the place of one parameter."""
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        value = _wrapped(chosen, text) if parameter.name == chosen.name else None
        if parameter.name != chosen.name:
            if parameter.default is not parameter.empty or parameter.kind in (2, 4):
                continue
            value = _FILLER_OF_KIND.get(str(parameter.annotation)) or FILLERS[parameter.name]
        if parameter.kind is parameter.KEYWORD_ONLY:
            named[parameter.name] = value
        else:
            positional.append(value)
    return positional, named


def _fillable(function: Callable[..., Any], chosen: inspect.Parameter) -> bool:
    """Whether there are values for the other parameters that it needs."""
    needed = [
        parameter
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is parameter.empty and parameter.kind not in (2, 4) and parameter.name != chosen.name
    ]
    return all(item.name in FILLERS or str(item.annotation) in _FILLER_OF_KIND for item in needed)


def _wrapped(parameter: inspect.Parameter, text: str) -> Any:
    annotation = str(parameter.annotation)
    if annotation.startswith("Mapping[str, bytes"):
        return {text: b"v"}
    if annotation.startswith("Mapping["):
        return {text: text}
    if annotation.startswith(("Iterable[tuple", "Sequence[tuple")):
        return [(text, b"v")]
    if annotation.startswith(("Sequence[str", "Collection[str", "tuple[str")):
        return [text]
    return text


@pytest.mark.guarantee("commands-8", by="property")
@pytest.mark.oracle
async def test_no_public_entry_lets_a_name_become_a_command(tapped, seed, steps):
    tap, client, world = tapped
    entries = Entries(client, world)
    tried = [(name, lambda text, f=f, p=p: _call(f, p, text)) for name, f, p in entries]
    tried += list(entries.by_hand().items())
    assert len(tried) > 100
    chance = random.Random(seed)
    for number, (name, call) in enumerate(tried):
        for text in [ATTACK, *chance.sample(NASTY[1:], min(steps(2), len(NASTY) - 1))]:
            text = text.replace("{}", str(number))
            if text == "\udcff" and name.startswith("repositor"):
                continue  # names of refs become JSON there
            error = await outcome(lambda call=call, text=text: call(text))
            assert not isinstance(error, OutcomeUnknown), f"{name}: {text!r}: {error}"
            if text.startswith("x r") and isinstance(error, UnreachableError):
                raise AssertionError(f"{name}: {error!r} for {text!r}")
        await client.connection.flush()
        assert client.connection.epoch == 0, f"{name} lost the connection"
        assert not [subject for subject in tap.check() if subject.startswith(b"evil")], name


def _call(function: Callable[..., Any], parameter: inspect.Parameter, text: str) -> Any:
    positional, named = _arguments(function, parameter, text)
    return function(*positional, **named)


naughty = st.text(st.sampled_from(" \r\n\t\0.*>ab:/\\é\x85\udc80"), max_size=8)


def _is_subject(text: str) -> bool:
    tokens = text.split(".")
    return all(tokens) and not any(character in text for character in " \t\r\n\0")


def refused(check: Callable[[Any], object], value: Any) -> bool:
    """Whether the check raises a UsageError, which names the value on one line."""
    try:
        check(value)
    except UsageError as error:
        return error.message.isprintable() or pytest.fail(f"{error.message!r} is not one line")
    return False


@given(naughty)
def test_a_subject_passes_the_gate_when_it_is_one(text):
    block = text.encode(errors="surrogateescape")
    passes = not refused(check_subject, block)
    assert passes == _is_subject(text)
    assert passes == bool(SUBJECT.fullmatch(block))
    assert not (passes and unsafe(block))


@given(naughty)
def test_names_and_filters_that_pass_are_subjects(text):
    for check in (lambda name: check_name(name, "stream"), check_filter_subject):
        assert refused(check, text) or _is_subject(text)


@given(st.dictionaries(naughty, naughty, min_size=1, max_size=3))
def test_headers_that_pass_come_back_as_they_are(headers):
    if refused(encode_headers, headers):
        lines = [text for pair in headers.items() for text in pair]
        assert any(set(text) & set("\r\n\0") for text in lines) or any(
            not name or ":" in name or name.strip() != name or not name.isprintable() for name in headers
        )
    else:
        block = encode_headers(headers)
        check_header(block)
        published(b"HPUB a %d %d\r\n%b\r\n" % (len(block), len(block), block))
        assert decode_headers(block) == {
            name: value.encode(errors="surrogateescape").strip().decode(errors="surrogateescape")
            for name, value in headers.items()
        }


@given(st.binary(max_size=20))
def test_bytes_that_are_not_a_header_block_are_refused(block):
    for candidate in (block, b"NATS/1.0" + block, b"NATS/1.0\r\n" + block + b"\r\n\r\n"):
        whole = candidate.startswith(b"NATS/1.0") and candidate.count(b"\r\n\r\n") == 1
        if candidate and not (whole and candidate.endswith(b"\r\n\r\n")):
            with pytest.raises(UsageError):
                check_header(candidate)


def test_a_wrong_value_is_shown_on_one_line_and_shortened():
    assert shown("a\r\nb\0\x1b[31m\udcff") == r"a\r\nb\x00\x1b[31m\xff"
    assert shown(b"a b") == "a b"
    assert len(shown("x" * 5000)) < 200


async def test_half_a_character_in_a_subject_is_a_usage_error(client):
    for text in ("\ud800", "a.\udfff"):
        with pytest.raises(UsageError, match="lone surrogate"):
            await client.connection.request(text)
    with pytest.raises(UsageError, match="lone surrogate"):
        encode_headers({"A": "\ud800"})
