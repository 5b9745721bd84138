"""Escaping of text from keys, values and servers for terminals, and bytes as text. [pure]"""

import base64

from kvctl.deferred import pattern
from kvctl.errors import KvctlError

# C0, DEL and C1 controls; bidi marks, embeddings, overrides and isolates; line and paragraph separators; and lone
# surrogates, which are not valid UTF-8. U+DC80 to U+DCFF stand for single bytes (PEP 383).
DANGEROUS = pattern("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

_SHORT = {"\t": r"\t", "\n": r"\n", "\r": r"\r"}


def escape(text: str, keep: str = "") -> str:
    """Write control characters, bidi controls and invalid bytes as `\\x1b`, `\\u202e`, except those in `keep`."""
    return DANGEROUS.sub(lambda match: match[0] if match[0] in keep else _escaped(match[0]), text)


def escape_unicode(text: str) -> str:
    r"""Write the same characters, except newlines, as `\u001b`, an escape of JSON and YAML strings."""
    return DANGEROUS.sub(lambda match: match[0] if match[0] == "\n" else f"\\u{ord(match[0]):04x}", text)


def utf8(text: str) -> bytes:
    r"""Encode as UTF-8; lone surrogates, which UTF-8 cannot hold, become `\udc80` as in JSON."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace")


def raw_bytes(text: str) -> bytes:
    """Return the bytes that `text` was decoded from with `surrogateescape`."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return utf8(text)


def _escaped(character: str) -> str:
    code = ord(character)
    if character in _SHORT:
        return _SHORT[character]
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def text_of(data: bytes, encoding: str | None = None) -> tuple[str, str]:
    """Return bytes as text and its encoding, `utf-8` or `base64`. Raises KvctlError if a forced `utf-8` fails."""
    if encoding != "base64":
        try:
            return data.decode(), "utf-8"
        except UnicodeDecodeError:
            if encoding is not None:
                raise KvctlError("The value is not UTF-8", hint="Use `--encoding base64`") from None
    return base64.b64encode(data).decode(), "base64"
