"""Checks of the account: limits that are nearly reached, and missing permissions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvctl.doctor.finding import ERROR, NOTE, WARNING, Finding
from kvctl.errors import KvctlError, PermissionDenied
from kvctl.jetstream.api import Api
from kvctl.jetstream.permissions import probe
from kvctl.units import format_size

SUBJECT = "account"
PROBE_TIMEOUT_S = 1.0
"""Seconds for the answer to a probe: a refusal comes immediately, and in clusters some get no answer."""
NEAR, FULL = 0.8, 0.98
"""Parts of a limit at which to warn, and to report an error."""

_LIMITS = {"memory": "max_memory", "storage": "max_storage", "streams": "max_streams", "consumers": "max_consumers"}


async def examine(api: Api) -> list[Finding]:
    """Check the usage of the account's limits, in each tier, and its user's permissions."""
    found = await _denied(api)
    try:
        info = await api.account_info()
    except PermissionDenied:
        return found  # reported by the probes
    except KvctlError as error:
        return [*found, Finding(ERROR, "jetstream", SUBJECT, error.message, error.hint or "")]
    found += _near(info, "")
    for tier, usage in (info.get("tiers") or {}).items():
        found += _near(usage, f" of tier {tier}")
    return found


def near(used: int, limit: int) -> tuple[float, bool]:
    """Return the used part of a limit, and whether to report it; no limit is 0 or less."""
    part = used / limit if limit > 0 else 0.0
    return part, part >= NEAR


def _near(usage: Mapping[str, Any], where: str) -> Iterator[Finding]:
    limits = usage.get("limits") or {}
    for name, of in _LIMITS.items():
        used = max(usage.get(name, 0), usage.get(f"reserved_{name}", 0))
        limit = limits.get(of, -1)
        part, notable = near(used, limit)
        if notable:
            shown = [format_size(value) if name in ("memory", "storage") else str(value) for value in (used, limit)]
            text = f"{part:.0%} of the account's {name}{where} limit is used: {shown[0]} of {shown[1]}"
            severity = ERROR if part >= FULL else WARNING
            yield Finding(severity, "account-limit", SUBJECT, text, "Raise the account's limit, or delete unused data")


async def _denied(api: Api) -> list[Finding]:
    denied = [
        item
        for item in await probe(api, timeout=PROBE_TIMEOUT_S)
        if not item.allowed and item.reason == "permission denied"
    ]
    if not denied:
        return []
    actions = ", ".join(item.action for item in denied)
    subjects = ", ".join(f"`{item.subject}`" for item in denied)
    return [
        Finding(NOTE, "permissions", SUBJECT, f"Not allowed to {actions}", f"Allow the user to publish to {subjects}")
    ]
