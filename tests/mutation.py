"""Random changes to JSON documents and to frames of the protocol, as a hostile or damaged peer makes them."""

import copy
import json
import random
import re
from typing import Any

DEEP = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    10**30,
    1.5,
    1e308,
    "",
    "x",
    "\ud800",
    "-5m",
    "a\n::error::b",
    [],
    {},
    [[]],
)
"""What stands in the place of something else."""


def mutated_document(document: Any, chance: random.Random) -> Any:
    """A copy in which one value is missing, is another, or is of another type."""
    copied = copy.deepcopy(document)
    places = list(_places(copied))
    if not places:
        return chance.choice(VALUES)
    holder, key = chance.choice(places)
    if isinstance(holder, dict) and chance.random() < 0.4:
        del holder[key]
    elif isinstance(holder[key], str) and holder[key] and chance.random() < 0.3:
        at = chance.randrange(len(holder[key]))
        holder[key] = holder[key][:at] + chance.choice(("", "x", " ", "\n", "9" * 5000)) + holder[key][at + 1 :]
    else:
        holder[key] = chance.choice(VALUES)
    return copied


def mutated_text(data: bytes, chance: random.Random) -> bytes:
    """The text of a JSON document, changed as a document or as bytes."""
    kind = chance.randrange(10)
    if kind == 0:
        return chance.choice((b"", b"[]", b"1", b"null", b'"x"', b"\xff\xfe", DEEP, b"{", data[: len(data) // 2]))
    if kind == 1:
        return mutated_bytes(data, chance)
    try:
        document = json.loads(data)
    except ValueError:
        return mutated_bytes(data, chance)
    return json.dumps(mutated_document(document, chance)).encode()


def mutated_bytes(data: bytes, chance: random.Random) -> bytes:
    """Bytes with some of them changed, missing or repeated; numbers and words of texts become others."""
    if not data:
        return b"x"
    at = chance.randrange(len(data))
    kind = chance.randrange(4)
    if kind == 0 and (numbers := [*re.finditer(rb"\d+", data)]):
        found = chance.choice(numbers)
        new = chance.choice((b"", b"x", b"-1", b"9" * 30, b"9" * 5000, b"0"))
        return data[: found.start()] + new + data[found.end() :]
    if kind == 1:
        return data[:at] + bytes([data[at] ^ (1 << chance.randrange(8))]) + data[at + 1 :]
    if kind == 2:
        return data[:at]
    return data[:at] + data[at : at + 20] + data[at:]


def mutated_frame(frame: bytes, chance: random.Random) -> bytes:
    """A MSG, HMSG or INFO frame with another content, whose lengths fit."""
    line, _, rest = frame.partition(b"\r\n")
    if line.startswith(b"INFO "):
        return b"INFO " + mutated_text(line[5:].strip(), chance).replace(b"\n", b" ") + b"\r\n"
    words = line.split(b" ")
    if words[0] not in (b"MSG", b"HMSG"):
        return frame
    edge = int(words[-2]) if words[0] == b"HMSG" else 0
    header, payload = rest[:edge], rest[edge:-2]
    part = chance.randrange(4)
    if part == 0 and len(words) == (5 if words[0] == b"MSG" else 6):
        words[3] = mutated_bytes(words[3], chance).translate(None, b" \r\n\t\0\f\v") or b"x"
    elif part == 1 and header:
        header = mutated_bytes(header, chance)
    elif payload or not header:
        payload = mutated_text(payload, chance)
    else:
        header = mutated_bytes(header, chance)
    sizes = [len(header), len(header) + len(payload)] if words[0] == b"HMSG" else [len(payload)]
    words[-len(sizes) :] = [b"%d" % size for size in sizes]
    return b" ".join(words) + b"\r\n" + header + payload + b"\r\n"


def _places(value: Any) -> Any:
    """Each holder with a key or position in it."""
    if isinstance(value, dict | list):
        for key, item in list(value.items()) if isinstance(value, dict) else enumerate(value):
            yield value, key
            yield from _places(item)
