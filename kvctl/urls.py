"""Server URLs: parsed with user, password and token apart, and redacted for display."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from kvctl.deferred import pattern
from kvctl.errors import UsageError
from kvctl.tokens import shown

PORTS = {"nats": 4222, "tls": 4222, "ws": 80, "wss": 443}
_NEXT = pattern(r",\s*(?=[A-Za-z]+://)")
"""Separator of two URLs in a list, if the second one has a scheme."""
_HINT = "Write it like `nats://127.0.0.1:4222`; write `/ ? # @ , %` in a password as `%2F %3F %23 %40 %2C %25`"


@dataclass(frozen=True, slots=True)
class Address:
    """Address of a server; `url` has no credentials, so that it may be shown."""

    url: str
    user: str | None = field(default=None, repr=False)
    """User name; a token without a password."""
    password: str | None = field(default=None, repr=False)

    @property
    def place(self) -> tuple[str, int]:
        """Return host and port."""
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or PORTS[parts.scheme]

    @property
    def websocket(self) -> bool:
        """True if it is reached through HTTP."""
        return self.url.startswith("ws")


def addresses(text: str) -> list[Address]:
    """Parse a server URL, or several separated by commas. Raises UsageError for an invalid one."""
    return [_address(piece) for piece in _pieces(text)]


def redact(text: str) -> str:
    """Return the URLs without anything that may belong to a user, password or token."""
    return ",".join(map(_bare, _listed(text)))


def _bare(text: str) -> str:
    scheme, begun, _ = text.strip().partition("://")
    if "@" in text:  # up to the last one: passwords may contain commas, slashes, marks
        known = f"{scheme}://" if begun and scheme.isalpha() else ""
        text = known + text.rpartition("@")[2]
    return ",".join(_shown_parts(map(str.strip, text.split(","))))


def _shown_parts(parts: Iterable[str]) -> Iterator[str]:
    """Yield the parts up to the first invalid one: the rest may be a password whose host was omitted."""
    for part in parts:
        scheme, begun, rest = part.partition("://")
        host, colon, _ = rest.partition(":") if begun else part.partition(":")
        if colon and not _read(part):
            yield f"{scheme}{begun}{host}:..." if begun else f"{host}:..."
            return
        yield part


def _listed(text: str) -> list[str]:
    return _NEXT.split(text) if "," in text else [text]


def _pieces(text: str) -> list[str]:
    """Split a list of URLs; a comma that can only belong to a password does not separate."""
    found: list[str] = []
    for piece in _listed(text):
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
    """Parse an address, with the userinfo decoded as by the `nats` CLI; None if it is invalid."""
    scheme, begun, rest = text.partition("://")
    if not begun:
        scheme, rest = "nats", text
    userinfo, _, place = rest.rpartition("@")
    scheme = scheme.lower()
    try:
        parts = urlsplit(f"{scheme}://{place}")
        valid = scheme in PORTS and bool(parts.hostname) and parts.port != 0 and place[-1] != ":"
    except ValueError:  # a port that is not a number or too large, brackets that do not match
        valid = False
    if not valid or any(c.isspace() or not c.isprintable() for c in text):
        return None
    user, password, secret = userinfo.partition(":")
    return Address(f"{scheme}://{place}", unquote(user) if userinfo else None, unquote(secret) if password else None)
