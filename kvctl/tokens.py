"""Validation of subjects, names and headers before anything is sent; bytes as a token. [pure]

Subjects and headers are sent as they are on a line of the protocol: a line end in one would inject a command.
"""

from __future__ import annotations

import binascii
from collections.abc import Mapping, Sequence

from kvctl.deferred import pattern
from kvctl.errors import UsageError

MAX_NAME = 255
"""Maximum length of the name of a stream or consumer in bytes."""
_SHOWN = 120
"""Characters of an invalid value shown in a message."""

_DOT = ord(".")
_ILLEGAL = pattern(rb"[\0\t\n\r ]|\.\.|\A\.|\.\Z|\A\Z")
_PREFIX_TOKEN = pattern(r"[^\s.*>\x00-\x1f\x7f]+")
_NOT_IN_NAMES = pattern(r"[\0\t\n\f\r .*>/\\]")
_NOT_IN_FILTERS = pattern(r"[\0\t\n\f\r ]")
_HEADER_NAME = pattern(r"[^\s:\x00-\x1f\x7f](?:[^:\x00-\x1f\x7f]*[^\s:\x00-\x1f\x7f])?")


def shown(text: str | bytes) -> str:
    """Format text for a message: on one line, control characters and invalid bytes escaped, truncated."""
    if isinstance(text, bytes):
        text = text.decode(errors="surrogateescape")
    if len(text) > _SHOWN:
        text = f"{text[:_SHOWN]}..."
    return text if text.isprintable() else "".join(map(_escaped, text))


def encoded(text: str) -> bytes:
    """Return the text's bytes, including surrogates for bytes that are not UTF-8. Raises UsageError."""
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        raise UsageError(f"`{shown(text)}` contains a lone surrogate") from None


def check_subject(subject: bytes) -> None:
    """Raise UsageError for an invalid subject. Literal wildcards are allowed."""
    suspect = unsafe(subject) or b".." in subject or subject[0] == _DOT or subject[-1] == _DOT
    if suspect and _ILLEGAL.search(subject):
        raise UsageError(
            f"`{shown(subject)}` is not a subject" if subject else "The subject is empty",
            hint="A subject has tokens joined by single dots, without white space and line ends",
        )


def check_subjects(subjects: Sequence[bytes]) -> None:
    """Raise UsageError, as `check_subject`, for the first invalid subject; ten times faster for a thousand."""
    lines = b"\n".join([b"", *subjects, b""])
    if lines.split() != subjects or any(part in lines for part in (b"..", b"\n.", b".\n", b"\0")):
        for subject in subjects:
            check_subject(subject)


def unsafe(subject: bytes) -> bool:
    """Return True if `check_subject` is needed; fast, for a hundred thousand calls a second."""
    return subject.split() != [subject] or b"\0" in subject


def check_prefix(name: str, text: str, *, tokens: int | None = None) -> None:
    """Raise UsageError for an invalid subject prefix."""
    parts = text.split(".")
    if all(map(_PREFIX_TOKEN.fullmatch, parts)) and tokens in (None, len(parts)):
        return
    one = "one token" if tokens == 1 else "tokens joined by single dots"
    raise UsageError(f"`{name}` cannot be `{shown(text)}`", hint=f"Use {one}, without spaces and wildcards")


def check_name(name: str, what: str) -> str:
    """Return the name of a stream or consumer if servers accept it. Raises UsageError."""
    if not name or len(encoded(name)) > MAX_NAME:
        raise UsageError(f"The name of a {what} must have 1 to {MAX_NAME} bytes, not `{shown(name)}`")
    if _NOT_IN_NAMES.search(name):
        raise UsageError(
            f"`{shown(name)}` is not the name of a {what}",
            hint="A name cannot contain white space or any of `.`, `*`, `>`, `/` and `\\`",
        )
    return name


def check_filter_subject(text: str) -> str:
    """Return a valid subject filter, with or without wildcards. Raises UsageError."""
    tokens = text.split(".")
    if "" in tokens or ">" in tokens[:-1] or _NOT_IN_FILTERS.search(text):
        raise UsageError(
            f"`{shown(text)}` is not a subject filter" if text else "The subject filter is empty",
            hint="Join tokens by single dots; `*` matches one token, `>` at the end matches the rest",
        )
    return text


def header_lines(headers: Mapping[str, str]) -> str:
    """Return the lines of a header block. Raises UsageError for a name or value that would end its line."""
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if lines.count("\n") != len(headers) or lines.count("\r") != len(headers) or "\0" in lines:
        _refuse_header(headers)
    for name in headers:
        if not _HEADER_NAME.fullmatch(name):
            raise UsageError(
                f"`{shown(name)}` is not the name of a header",
                hint="A name cannot contain colons or control characters",
            )
    return lines


def check_header(block: bytes) -> None:
    """Raise UsageError for bytes that are not one header block: the rest would be misread."""
    if block and not (block.startswith(b"NATS/1.0") and block.find(b"\r\n\r\n") == len(block) - 4):
        raise UsageError(f"`{shown(block)}` is not a header block")


def _refuse_header(headers: Mapping[str, str]) -> None:
    for name, value in headers.items():
        for part, text in (("name", name), ("value", value)):
            if any(character in text for character in "\r\n\0"):
                raise UsageError(
                    f"The {part} of header `{shown(name)}` contains a line end or a NUL: `{shown(text)}`",
                    hint="Headers are single lines",
                )


def _escaped(character: str) -> str:
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else ascii(character)[1:-1]


_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_SORTED = b"0123456789=ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"
_TO_SORTED = bytes.maketrans(_BASE64, _SORTED)
_FROM_SORTED = bytes.maketrans(_SORTED, _BASE64)


def token(data: bytes) -> bytes:
    """Encode bytes as one token of a subject that sorts as they do; four characters for three bytes.

    Base64 with its alphabet in character order: all its characters are legal in keys of ADR-8, and none sorts before
    the dot. (base32hex would be six times slower and a fifth longer.)
    """
    return binascii.b2a_base64(data, newline=False).rstrip(b"=").translate(_TO_SORTED)


def untoken(text: bytes) -> bytes:
    """Decode a token. Raises ValueError, though not for every text that `token` never returns."""
    return binascii.a2b_base64(text.translate(_FROM_SORTED) + b"=" * (-len(text) % 4))
