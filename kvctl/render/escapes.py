"""Text from keys, values and servers, made harmless for a terminal. [pure]"""

import re

# C0, DEL and C1 controls; bidi marks, embeddings, overrides and isolates; line and paragraph separators; and what
# is no UTF-8: lone surrogates, of which U+DC80 to U+DCFF stand for single bytes (PEP 383).
DANGEROUS = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

_SHORT = {"\t": r"\t", "\n": r"\n", "\r": r"\r"}


def escape(text: str, keep: str = "") -> str:
    """`text` with controls, bidi controls and invalid bytes written as `\\x1b`, `\\u202e`; those in `keep` stay."""
    return DANGEROUS.sub(lambda match: match[0] if match[0] in keep else _escaped(match[0]), text)


def escape_unicode(text: str) -> str:
    r"""`text` with every such character as `\u001b`, the form that JSON and YAML strings read back; newlines stay."""
    return DANGEROUS.sub(lambda match: match[0] if match[0] == "\n" else f"\\u{ord(match[0]):04x}", text)


def utf8(text: str) -> bytes:
    r"""`text` as UTF-8; lone surrogates, which UTF-8 cannot hold, as `\udc80`, their form in JSON."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace")


def raw_bytes(text: str) -> bytes:
    """The bytes that `text` was decoded from: the reverse of decoding with `surrogateescape`."""
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
