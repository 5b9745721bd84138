"""Any bytes as one token of a subject, in an order that is the bytes' own. [pure]

Base64 with an alphabet in the order of its characters, so that the texts sort as the bytes do; all of them are legal in
keys of ADR-8, and none sorts before the dot. (base32hex would take six times as long, and a fifth more room.)
"""

from __future__ import annotations

import binascii

_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_SORTED = b"0123456789=ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"
_TO_SORTED = bytes.maketrans(_BASE64, _SORTED)
_FROM_SORTED = bytes.maketrans(_SORTED, _BASE64)


def token(data: bytes) -> bytes:
    """The bytes as a token; four characters for three bytes."""
    return binascii.b2a_base64(data, newline=False).rstrip(b"=").translate(_TO_SORTED)


def untoken(text: bytes) -> bytes:
    """The bytes of a token. Raises ValueError; what `token` never makes may pass all the same."""
    return binascii.a2b_base64(text.translate(_FROM_SORTED) + b"=" * (-len(text) % 4))
