"""Addresses of servers: URLs read with user, password and token apart, and as they may be shown."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from kvctl.errors import UsageError
from kvctl.tokens import shown

_PORTS = {"nats": 4222, "tls": 4222, "ws": 80, "wss": 443}
_NEXT = re.compile(r",\s*(?=[A-Za-z]+://)")
"""Between two URLs of a list, where the second one has a scheme."""
_HINT = "Write it like `nats://127.0.0.1:4222`; write `/ ? # @ , %` in a password as `%2F %3F %23 %40 %2C %25`"


@dataclass(frozen=True, slots=True)
class Address:
    """One server; `url` is bare, so that it may be shown."""

    url: str
    user: str | None = field(default=None, repr=False)
    """A token where there is no password."""
    password: str | None = field(default=None, repr=False)

    @property
    def place(self) -> tuple[str, int]:
        """Host and port."""
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or _PORTS[parts.scheme]

    @property
    def websocket(self) -> bool:
        """Whether it is reached through HTTP."""
        return self.url.startswith("ws")


def addresses(text: str) -> list[Address]:
    """The servers of a URL, or of several separated by commas. Raises UsageError for what is not an address."""
    return [_address(piece) for piece in _pieces(text)]


def redact(text: str) -> str:
    """The URL, or the list of them, without anything that may belong to a user, password or token."""
    return ",".join(_bare(piece) for piece in _NEXT.split(text))


def _bare(text: str) -> str:
    scheme, begun, _ = text.strip().partition("://")
    if "@" in text:  # up to the last one, whatever stands before it: passwords hold commas, slashes, marks
        known = f"{scheme}://" if begun and scheme.isalpha() else ""
        text = known + text.rpartition("@")[2]
    return ",".join(_shown_parts(map(str.strip, text.split(","))))


def _shown_parts(parts: Iterable[str]) -> Iterator[str]:
    """The parts; from one on that is no address, what follows may be a password whose host was forgotten."""
    for part in parts:
        scheme, begun, rest = part.partition("://")
        host, colon, _ = rest.partition(":") if begun else part.partition(":")
        if colon and not _read(part):
            yield f"{scheme}{begun}{host}:..." if begun else f"{host}:..."
            return
        yield part


def _pieces(text: str) -> list[str]:
    """The URLs of a list; a comma that can only belong to a password separates nothing."""
    found: list[str] = []
    for piece in _NEXT.split(text):
        parts = [part.strip() for part in piece.split(",")]
        whole = [part for part in parts if part]
        if "@" in piece and not all(_read(part) and part[0] != "@" for part in whole):
            head, _, tail = piece.strip().rpartition("@")
            first, *others = tail.split(",")
            whole = [f"{head}@{first}", *(other.strip() for other in others if other.strip())]
        found += whole
    return found


def _address(text: str) -> Address:
    if found := _read(text):
        return found
    raise UsageError(f"`{shown(redact(text))}` is not the URL of a server", hint=_HINT)


def _read(text: str) -> Address | None:
    """The address, with the userinfo decoded as the `nats` CLI does; None for what is not one."""
    scheme, begun, rest = text.partition("://")
    if not begun:
        scheme, rest = "nats", text
    userinfo, _, place = rest.rpartition("@")
    scheme = scheme.lower()
    try:
        parts = urlsplit(f"{scheme}://{place}")
        valid = scheme in _PORTS and bool(parts.hostname) and parts.port != 0 and place[-1] != ":"
    except ValueError:  # a port that is not a number or too large, brackets that do not match
        valid = False
    if not valid or any(c.isspace() or not c.isprintable() for c in text):
        return None
    user, password, secret = userinfo.partition(":")
    return Address(f"{scheme}://{place}", unquote(user) if userinfo else None, unquote(secret) if password else None)
