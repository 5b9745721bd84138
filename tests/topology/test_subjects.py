"""Where keys land: rendered, predicted, and compared with what a server does."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvctl
from kvctl.errors import UsageError
from kvctl.jetstream import streams
from kvctl.server import Server
from kvctl.topology.subjects import Transform, UnknownTransform, land, meet, parse, render


@pytest.mark.parametrize(
    ("keys", "prefix", "maps", "key", "lands"),
    [
        ([], "", [], "a.b", "a.b"),
        ([], "p.q", [], "a.b", "p.q.a.b"),
        (["NEW.>"], "", [], "NEW.7", "7"),
        (["NEW.>"], "orders.new", [], "NEW.7.x", "orders.new.7.x"),
        (["NEW.>"], "", [], "OLD.7", None),
        (["a.*.c"], "", [], "a.b.c", "b.c"),
        (["a.*.c"], "p", [], "a.b.c", "p.b.c"),
        (["app.port"], "", [], "app.port", "app.port"),
        (["app.port"], "p", [], "app.port", "p.app.port"),
        ([], "", [("*.*", "stock.$2.$1")], "a.b", "stock.b.a"),
        ([], "", [("x.*.>", "$1.y.>")], "x.1.2.3", "1.y.2.3"),
    ],
)
def test_keys_land_where_the_filter_prefix_or_map_says(
    keys: list[str], prefix: str, maps: list[tuple[str, str]], key: str, lands: str | None
) -> None:
    transforms = render("ORDERS", "EDGE", keys, prefix, maps)
    assert land(transforms, f"$KV.ORDERS.{key}") == (lands and f"$KV.EDGE.{lands}")


def test_the_adrs_example_is_rendered_as_the_adr_has_it() -> None:
    assert [rule.to_json() for rule in render("ORDERS", "NEW_ORDERS", ["NEW.>"])] == [
        {"src": "$KV.ORDERS.NEW.>", "dest": "$KV.NEW_ORDERS.>"}
    ]


@pytest.mark.parametrize(
    ("src", "dest", "dropped"),
    [("*.*", "$2.$1", ()), ("a.*.*", "$2", (1,)), ("a.>", "b", (1,)), ("*.>", "x.>", (1,)), ("a.b", "c", ())],
)
def test_wildcards_that_a_map_drops_are_named(src: str, dest: str, dropped: tuple[int, ...]) -> None:
    assert render("A", "B", maps=[(src, dest)])[0].dropped == dropped


@pytest.mark.parametrize("dest", ["$3.$1", "$0", "a..b", "a.*", ">.a", "a b", "", "{{partition(2,1)}}"])
def test_a_destination_that_no_server_takes_is_refused(dest: str) -> None:
    with pytest.raises(UsageError):
        render("A", "B", maps=[("*.*", dest)])


def test_functions_that_cannot_be_predicted_are_said_to_be_unknown() -> None:
    with pytest.raises(UnknownTransform):
        Transform("a.*", "b.{{partition(3,1)}}").apply("a.1")


@pytest.mark.parametrize(
    ("first", "second", "met"),
    [
        ("a.>", "a.*", True),
        ("a.*", "*.b", True),
        ("a.b", "a.c", False),
        ("a", "a.>", False),
        (">", "x", True),
        ("a.*", "a.b.c", False),
    ],
)
def test_filters_that_share_a_subject_meet(first: str, second: str, met: bool) -> None:
    assert meet(first, second) is met is meet(second, first)


_TOKEN = st.sampled_from(["a", "b", "c"])
_KEYS = st.lists(st.lists(_TOKEN, min_size=1, max_size=4).map(".".join), min_size=1, max_size=12, unique=True)


@st.composite
def _rules(draw: st.DrawFn) -> tuple[list[str], str, list[tuple[str, str]]]:
    prefix = draw(st.sampled_from(["", "p", "p.q"]))
    source = draw(st.lists(st.sampled_from(["a", "b", "*"]), min_size=1, max_size=3))
    tail = draw(st.booleans())
    text = ".".join([*source, ">"] if tail else source)
    if draw(st.booleans()):
        return [text], prefix, []
    places = draw(st.permutations([f"${number}" for number in range(1, source.count("*") + 1)]))
    dest = ".".join([draw(_TOKEN), *places, *([">"] if tail else [])])
    return [], prefix, [(text, dest)]


@settings(max_examples=25, deadline=None)
@given(rules=_rules(), keys=_KEYS)
def test_a_server_puts_every_key_where_it_was_predicted(
    server: Server, rules: tuple[list[str], str, list[tuple[str, str]]], keys: list[str]
) -> None:
    transforms = render("PREDICT", "LANDED", *rules)
    predicted = {landed for key in keys if (landed := land(transforms, f"$KV.PREDICT.{key}"))}
    assert asyncio.run(_landed(server.url, transforms, keys, len(predicted))) == predicted


async def _landed(url: str, transforms: list[Transform], keys: list[str], wanted: int) -> set[str]:
    async with kvctl.connect(url) as client:
        origin = {"name": "KV_PREDICT", "subjects": ["$KV.PREDICT.>"], "storage": "memory"}
        source = {"name": "KV_PREDICT", "subject_transforms": [rule.to_json() for rule in transforms]}
        await streams.create(client.api, origin)
        try:
            await client.bucket("PREDICT").put_many((key, b"") for key in keys)
            made = await streams.create(client.api, {"name": "LANDED", "storage": "memory", "sources": [source]})
            assert parse(made["config"]["sources"][0]["subject_transforms"]) == transforms
            for _ in range(100):
                found = await streams.subjects(client.api, "LANDED")
                info = await streams.info(client.api, "LANDED")
                if len(found) >= wanted and info["sources"][0]["active"] >= 0:
                    break
                await asyncio.sleep(0.02)
            return set(found)
        finally:
            for name in ("LANDED", "KV_PREDICT"):
                if await streams.find(client.api, name):
                    await streams.delete(client.api, name)
