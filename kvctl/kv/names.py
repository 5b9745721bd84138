"""Names and subjects of ADR-8: what is a valid bucket, key or filter, and where it lives."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kvctl.errors import UsageError

STREAM_PREFIX = "KV_"
SUBJECT_PREFIX = "$KV."
RESERVED = "_kv"
MAX_BUCKET = 252
"""Characters: a stream's name has 255 at most."""

TAKE_REFS = ("get", "keys", "history", "put", "create", "update", "delete", "load", "dump")
"""The key commands that take NAME@REF, a ref of a repository, in place of a bucket."""

BUCKET_PATTERN = r"[a-zA-Z0-9_-]+"
FILTER_PATTERN = r"(?:\*|[-/_=a-zA-Z0-9]+)(?:\.(?:\*|[-/_=a-zA-Z0-9]+))*(?:\.>)?|>"
_KEY_PATTERN = r"[-/_=a-zA-Z0-9]+(?:\.[-/_=a-zA-Z0-9]+)*"

_BUCKET = re.compile(rf"{BUCKET_PATTERN}\Z")
_KEY = re.compile(rf"{_KEY_PATTERN}\Z")
_KEYS = re.compile(rf"(?:{_KEY_PATTERN}\n)*{_KEY_PATTERN}\Z")
_FILTER = re.compile(rf"(?:{FILTER_PATTERN})\Z")
_LONE = re.compile("[\ud800-\udfff]")
_KEY_HINT = "A key is made of letters, digits and `-/_=`, in parts joined by single dots"


def check_bucket(name: str) -> str:
    """The name itself. Raises UsageError (ADR-8: letters, digits, `_`, `-`)."""
    if "@" in name:
        raise UsageError(
            f"`{name}` is a ref of a repository; here a bucket is meant",
            hint=f"Key commands take one ({', '.join(TAKE_REFS)}); `kvctl repo checkout` makes a bucket equal to it",
        )
    if not _BUCKET.match(name):
        what = f"`{name}` is not a bucket name" if name else "The bucket name is empty"
        raise UsageError(what, hint="A bucket name is made of letters, digits, `_` and `-`")
    if len(name) > MAX_BUCKET:
        raise UsageError(f"The bucket name has {len(name)} characters, {MAX_BUCKET} are the most")
    return name


def check_key(key: str) -> str:
    """The key itself. Raises UsageError for what ADR-8 does not allow, wildcards and empty tokens included."""
    if not _KEY.match(key):
        if not key:
            raise UsageError("The key is empty", hint=_KEY_HINT)
        wild = "*" in key or ">" in key
        raise UsageError(
            f"`{key}` is not a key" + (": wildcards select keys, they name none" if wild else ""),
            hint=_KEY_HINT + ("; `--match` takes a filter where a command has it" if wild else ""),
        )
    if key.startswith(RESERVED):
        raise UsageError(f"`{key}` is reserved", hint="Keys below `_kv` are for internal use (ADR-8)")
    return key


def check_keys(keys: Sequence[str]) -> None:
    """Raises UsageError, as `check_key`, for the first that is no key; thousands in a fifth of the time."""
    joined = "\n".join(keys)
    if _KEYS.match(joined) and joined.count("\n") == len(keys) - 1 and f"\n{RESERVED}" not in f"\n{joined}":
        return
    for key in keys:
        check_key(key)


def check_filter(text: str) -> str:
    """The filter itself: a key, with `*` for a whole token and `>` for the rest. Raises UsageError."""
    if not _FILTER.match(text):
        what = f"`{text}` is not a filter" if text else "The filter is empty"
        raise UsageError(
            what, hint="`*` stands for one whole token, `>` for the rest, at the end only: `users.*.name`, `users.>`"
        )
    return text


def is_wild(text: str) -> bool:
    """Whether a valid filter has a wildcard."""
    return text == ">" or text.endswith(".>") or "*" in text.split(".")


def check_literal(key: str) -> str:
    """A foreign key, as it stands on the server. Raises UsageError only for what no subject can hold."""
    if not key or any(c in key for c in " \t\r\n") or "" in key.split("."):
        raise UsageError(
            f"`{key}` cannot be a key" if key else "The key is empty",
            hint="No subject has spaces, line ends or empty tokens",
        )
    return key


def literal_filter(key: str) -> str:
    """A filter whose matches include the foreign key: `*` for tokens that JSON cannot carry, `>` from a literal `>` on.

    To the server a literal `>` is none of the tokens that `*` stands for.
    """
    tokens = key.split(".")
    if ">" in tokens:
        tokens = tokens[: tokens.index(">") + 1]
    return ".".join("*" if _LONE.search(token) else token for token in tokens)


def is_plain(key: str) -> bool:
    """Whether a request for the key, foreign as it may be, can only be understood as this key."""
    return not any(map(_means_more, key.split(".")))


def _means_more(token: str) -> bool:
    return token in ("*", ">") or bool(_LONE.search(token))


def matches(key: str, filters: tuple[str, ...]) -> bool:
    """Whether the key is selected by one of the filters; no filters select everything."""
    if not filters:
        return True
    tokens = key.split(".")
    return any(_matches(tokens, pattern.split(".")) for pattern in filters)


def disjoint(filters: list[str]) -> list[str]:
    """The filters without those that another one covers: servers refuse overlapping ones (10138)."""
    kept: list[str] = []
    for candidate in dict.fromkeys(filters):
        if any(_covers(other, candidate) for other in kept):
            continue
        kept = [other for other in kept if not _covers(candidate, other)]
        kept.append(candidate)
    return kept


def overlapping(filters: list[str]) -> bool:
    """Whether some key could match two of the filters."""
    return any(
        _meet(first.split("."), second.split(".")) for at, first in enumerate(filters) for second in filters[at + 1 :]
    )


def _matches(tokens: list[str], pattern: list[str]) -> bool:
    for at, part in enumerate(pattern):
        if part == ">":
            return len(tokens) > at
        if at >= len(tokens) or part not in ("*", tokens[at]):
            return False
    return len(tokens) == len(pattern)


def _covers(wide: str, narrow: str) -> bool:
    """Whether every key of `narrow` is one of `wide`."""
    wides, narrows = wide.split("."), narrow.split(".")
    for at, part in enumerate(wides):
        if part == ">":
            return len(narrows) > at
        if at >= len(narrows) or narrows[at] == ">" or (part != "*" and part != narrows[at]):
            return False
    return len(wides) == len(narrows)


def _meet(first: list[str], second: list[str]) -> bool:
    for one, other in zip(first, second, strict=False):
        if ">" in (one, other):
            return True
        if one != other and "*" not in (one, other):
            return False
    return len(first) == len(second)
