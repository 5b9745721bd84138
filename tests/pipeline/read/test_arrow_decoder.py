"""Columns of messages with and without headers, decoded together."""

import random
from itertools import permutations
from typing import Any

import pytest

from kvctl.jetstream.direct_get import StoredMessage
from kvctl.kv.identity import HEADER, all_bare
from kvctl.pipeline.read.arrow_decoder import Decoder
from kvctl.pipeline.read.columns import schema_of

COLUMNS = ("operation", "headers", "ttl", "origin")
PLAIN: tuple[Any, ...] = ("PUT", None, None, "home")
MESSAGES: dict[bytes, tuple[Any, ...]] = {
    b"": PLAIN,
    b"NATS/1.0\r\nKvctl-Id: abc\r\n\r\n": PLAIN,
    b"NATS/1.0\r\nKvctl-Row: job.1.00000002\r\n\r\n": PLAIN,
    b"NATS/1.0\r\nKvctl-Id: abc\r\nNats-TTL: 5s\r\n\r\n": ("PUT", None, 5.0, "home"),
    b"NATS/1.0\r\nKvctl-Id: abc\r\nX: y\r\n\r\n": ("PUT", [("X", "y")], None, "home"),
    b"NATS/1.0\r\nX: y\r\n\r\n": ("PUT", [("X", "y")], None, "home"),
    b"NATS/1.0\r\nKV-Operation: DEL\r\n\r\n": ("DEL", None, None, "home"),
    b"NATS/1.0\r\nNats-Stream-Source: KV_other 7 > >\r\n\r\n": ("PUT", None, None, "other"),
}


def rows(headers: list[bytes]) -> list[tuple[Any, ...]]:
    decoder = Decoder(schema_of(COLUMNS), "B", "$KV.B.", "home")
    messages = [StoredMessage("KV_B", f"$KV.B.k{n}", n + 1, 0, header, b"v") for n, header in enumerate(headers)]
    return list(zip(*decoder.of_messages(messages).to_pydict().values(), strict=True))


@pytest.mark.parametrize("header", MESSAGES)
def test_messages_of_one_kind(header):
    assert rows([header] * 3) == [MESSAGES[header]] * 3


def test_a_message_decides_nothing_about_others():
    for headers in permutations(MESSAGES, 3):
        assert rows(list(headers)) == [MESSAGES[header] for header in headers], headers


def test_joined_blocks_are_bare_only_if_each_is(seed):
    """Blocks may begin and end anywhere, as clients write them."""
    dice = random.Random(seed)
    pieces = [b"NATS/1.0\r\n", b"Kvctl-Id: a", b"Kvctl-Id: ", b"X: y", b"\r\n", b"\r\n\r\n", b"\r", b"\n", b"NATS/1.0"]
    bare = b"NATS/1.0\r\nKvctl-Id: a\r\n\r\n"
    found = 0
    for _ in range(20_000):
        blocks = [
            bare if dice.random() < 0.5 else b"".join(dice.choices(pieces, k=dice.randint(1, 6)))
            for _ in range(dice.randint(1, 3))
        ]
        if all_bare(b"".join(blocks), HEADER):
            found += 1
            lines = [line for block in blocks for line in block.split(b"\r\n")[1:]]
            assert not [line for line in lines if b":" in line and not line.startswith(b"Kvctl-Id")], blocks
    assert found
