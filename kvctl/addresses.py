"""Where a server is and where its API begins: valid URLs and subject prefixes, and URLs as they may be shown."""

from urllib.parse import urlsplit, urlunsplit

from kvctl.errors import UsageError

_SCHEMES = ("nats", "tls", "ws", "wss")


def check_url(url: str) -> None:
    """Raises UsageError unless it names a server: host, or `nats://host:port`, with or without userinfo."""
    try:
        parts = urlsplit(url if "://" in url else f"nats://{url}")
        valid = parts.scheme in _SCHEMES and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number or too large, brackets that do not match
        valid = False
    if not valid or any(c.isspace() for c in url):
        raise UsageError(f"`{redact(url)}` is not a server's URL", hint="Write it like `nats://127.0.0.1:4222`")


def redact(url: str) -> str:
    """The URL, or the list of them, without user, password and token."""
    return ",".join(_redact_one(part.strip()) for part in url.split(","))


def _redact_one(url: str) -> str:
    try:
        parts = urlsplit(url if "://" in url else f"//{url}")
    except ValueError:
        return url.rpartition("@")[2]
    if "@" not in parts.netloc:
        return url
    bare = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    return bare if "://" in url else bare.removeprefix("//")
