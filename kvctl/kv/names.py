"""Names and subjects of ADR-8: valid buckets, keys and filters, and their subjects."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kvctl.deferred import pattern
from kvctl.errors import UsageError
from kvctl.tokens import shown

STREAM_PREFIX = "KV_"
SUBJECT_PREFIX = "$KV."
RESERVED = "_kv"
MAX_BUCKET = 252
"""Maximum length of a bucket name in characters: a stream's name has at most 255."""

TAKE_REFS = ("get", "keys", "history", "put", "create", "update", "delete", "load", "dump", "env")
"""Key commands that accept NAME@REF, a ref of a repository, instead of a bucket."""

BUCKET_PATTERN = r"[a-zA-Z0-9_-]+"
FILTER_PATTERN = r"(?:\*|[-/_=a-zA-Z0-9]+)(?:\.(?:\*|[-/_=a-zA-Z0-9]+))*(?:\.>)?|>"
KEY_PATTERN = r"[-/_=a-zA-Z0-9]+(?:\.[-/_=a-zA-Z0-9]+)*"

_BUCKET = pattern(rf"{BUCKET_PATTERN}\Z")
_KEY = pattern(rf"{KEY_PATTERN}\Z")
_KEYS = pattern(rf"(?:{KEY_PATTERN}\n)*{KEY_PATTERN}\Z")
_FILTER = pattern(rf"(?:{FILTER_PATTERN})\Z")
_LONE = pattern("[\ud800-\udfff]")
_FILTER_COMMANDS = "Name a key; `delete` and `purge` select keys by a filter with `--match`"
_KEY_HINT = "Use `A-Z a-z 0-9 - / _ =`, in parts joined by single dots"


def is_ref(text: str) -> bool:
    """Return True for NAME@REF, a ref of a repository, where a bucket may be named."""
    return "@" in text


def split_ref(text: str) -> tuple[str, str]:
    """Split NAME@REF; the ref of a text without one is empty."""
    name, _, ref = text.partition("@")
    return name, ref


def check_bucket(name: str) -> str:
    """Return the name if it is valid. Raises UsageError (ADR-8: letters, digits, `_`, `-`)."""
    if is_ref(name):
        raise UsageError(
            f"`{name}` is a ref of a repository, not a bucket",
            hint=f"Key commands accept refs ({', '.join(TAKE_REFS)}); `kvctl repo checkout` copies one to a bucket",
        )
    if not _BUCKET.match(name):
        what = f"`{shown(name)}` is not a bucket name" if name else "The bucket name is empty"
        raise UsageError(what, hint="Use `A-Z a-z 0-9 _ -`")
    if len(name) > MAX_BUCKET:
        raise UsageError(f"The bucket name has {len(name)} characters; the maximum is {MAX_BUCKET}")
    return name


def check_key(key: str) -> str:
    """Return the key if ADR-8 allows it. Raises UsageError, also for wildcards and empty tokens."""
    if not _KEY.match(key):
        if not key:
            raise UsageError("The key is empty", hint=_KEY_HINT)
        wild = "*" in key or ">" in key
        raise UsageError(
            f"`{shown(key)}` is not a key" + (": keys cannot contain wildcards" if wild else ""),
            hint=_FILTER_COMMANDS if wild else _KEY_HINT,
        )
    if key.startswith(RESERVED):
        raise UsageError(f"`{shown(key)}` is reserved", hint="Keys that start with `_kv` are for internal use (ADR-8)")
    return key


def check_keys(keys: Sequence[str]) -> None:
    """Raise UsageError, as `check_key`, for the first invalid key; five times faster for thousands."""
    joined = "\n".join(keys)
    if _KEYS.match(joined) and joined.count("\n") == len(keys) - 1 and f"\n{RESERVED}" not in f"\n{joined}":
        return
    for key in keys:
        check_key(key)


def check_filter(text: str) -> str:
    """Return the filter if it is valid: a key, with `*` for a whole token and `>` for the rest. Raises UsageError."""
    if not _FILTER.match(text):
        what = f"`{shown(text)}` is not a filter" if text else "The filter is empty"
        raise UsageError(
            what, hint="`*` matches one token, `>` at the end matches the rest, as in `users.*.name` and `users.>`"
        )
    return text


def is_wild(text: str) -> bool:
    """Return True if a valid filter has a wildcard."""
    return text == ">" or text.endswith(".>") or "*" in text.split(".")


def check_literal(key: str) -> str:
    """Return a non-conforming key as it is stored. Raises UsageError only for text that no subject can contain."""
    if not key or any(c in key for c in " \t\r\n") or "" in key.split("."):
        raise UsageError(
            f"`{shown(key)}` cannot be a key" if key else "The key is empty",
            hint="A subject cannot contain spaces, line ends or empty tokens",
        )
    return key


def literal_filter(key: str) -> str:
    """Return a filter that matches the non-conforming key: `*` for tokens that JSON cannot carry, `>` from `>` on.

    For servers, a literal `>` is not one of the tokens that `*` matches.
    """
    tokens = key.split(".")
    if ">" in tokens:
        tokens = tokens[: tokens.index(">") + 1]
    return ".".join("*" if _LONE.search(token) else token for token in tokens)


def is_plain(key: str) -> bool:
    """Return True if a request for the key, even a non-conforming one, can only mean this key."""
    return not any(map(_means_more, key.split(".")))


def _means_more(token: str) -> bool:
    return token in ("*", ">") or bool(_LONE.search(token))


def matches(key: str, filters: tuple[str, ...]) -> bool:
    """Return True if one of the filters selects the key; no filters select everything."""
    if not filters:
        return True
    tokens = key.split(".")
    return any(_matches(tokens, pattern.split(".")) for pattern in filters)


class FilterTree:
    """Filters by their tokens: one is compared with all others in about as many steps as it has tokens."""

    STEPS = 256
    """Maximum number of steps for each filter, whatever wildcards they combine: these are then assumed to overlap."""
    END = ""
    """Child of a node at which a filter ends; no token is empty."""

    def __init__(self, filters: Iterable[str] = ()) -> None:
        self._root: dict[str, Any] = {}
        self._steps = 0
        for text in filters:
            self.add(text)

    def add(self, text: str) -> None:
        """Add a filter."""
        node = self._root
        for part in text.split("."):
            node = node.setdefault(part, {})
        node[self.END] = {}
        self._steps += self.STEPS

    def selects(self, key: str) -> bool:
        """Return True if one of the filters selects the key."""
        nodes = [self._root]
        for part in key.split("."):
            if any(">" in node for node in nodes):
                return True
            nodes = [child for node in nodes for child in (node.get(part), node.get("*")) if child]
        return any(self.END in node for node in nodes)

    def meets(self, text: str) -> bool:
        """Return True if some key matches the filter and one of the tree, or if it takes too many steps to tell."""
        nodes = [self._root]
        for part in text.split("."):
            if any(">" in node for node in nodes) or self._steps < 0:
                return True
            if part == ">":
                return any(len(node) > (self.END in node) for node in nodes)
            each = (node.values() if part == "*" else (node.get(part), node.get("*")) for node in nodes)
            nodes = [child for children in each for child in children if child]
            self._steps -= len(nodes)
        return any(self.END in node for node in nodes)

    def covers(self, text: str) -> bool:
        """Return True if another filter of the tree selects every key of this one."""
        nodes = [(self._root, False)]
        for part in text.split("."):
            if self._steps < 0:
                return False
            if part != ">" and any(">" in node for node, _ in nodes):
                return True
            same = [(node[part], wider) for node, wider in nodes if part in node]
            wide = [(node["*"], True) for node, _ in nodes if "*" in node and part not in ("*", ">")]
            nodes = same + wide
            self._steps -= len(nodes)
        return any(wider and self.END in node for node, wider in nodes)


MOST_FILTERS = 4096
"""Maximum number of filters of one consumer: servers compare each with all others."""


def disjoint(filters: Sequence[str]) -> list[str]:
    """Drop filters that another one covers: servers refuse overlapping ones (10138)."""
    kept = list(dict.fromkeys(filters))
    tree = FilterTree(kept)
    return [text for text in kept if not tree.covers(text)]


def overlapping(filters: Sequence[str]) -> bool:
    """Return True if some key could match two of the filters, or if they are too many or too entangled to tell."""
    if len(filters) > MOST_FILTERS:
        return True
    tree = FilterTree()
    for text in filters:
        if tree.meets(text):
            return True
        tree.add(text)
    return False


def apart(filters: Sequence[str]) -> tuple[str, ...]:
    """Return filters for one consumer: servers refuse overlapping ones (10138)."""
    return (">",) if overlapping(list(filters)) else tuple(filters)


def meet(first: str, second: str) -> bool:
    """Return whether some subject or key matches both filters."""
    ones, others = first.split("."), second.split(".")
    for one, other in zip(ones, others, strict=False):
        if ">" in (one, other):
            return True
        if one != other and "*" not in (one, other):
            return False
    return len(ones) == len(others)


def _matches(tokens: list[str], pattern: list[str]) -> bool:
    for at, part in enumerate(pattern):
        if part == ">":
            return len(tokens) > at
        if at >= len(tokens) or part not in ("*", tokens[at]):
            return False
    return len(tokens) == len(pattern)
