"""The account: limits that are near, and what is not allowed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvctl.doctor.finding import ERROR, NOTE, WARNING, Finding
from kvctl.errors import KvctlError, PermissionDenied
from kvctl.jetstream.api import Api
from kvctl.jetstream.permissions import probe
from kvctl.units import format_size

SUBJECT = "account"
PATIENCE = 1.0
"""Seconds for the answer to a probe: a refusal comes at once, and in clusters nobody answers to some."""
NEAR, FULL = 0.8, 0.98
"""Parts of a limit at which there is a warning, and an error."""

_LIMITS = {
    "memory": "max_memory", "storage": "max_storage", "streams": "max_streams", "consumers": "max_consumers",
}  # fmt: skip


async def examine(api: Api) -> list[Finding]:
    """Usage of the account's limits, in each tier, and what its user may not do."""
    found = await _denied(api)
    try:
        info = await api.account_info()
    except PermissionDenied:
        return found  # which the probes have said
    except KvctlError as error:
        return [*found, Finding(ERROR, "jetstream", SUBJECT, error.message, error.hint or "")]
    found += _near(info, "")
    for tier, usage in (info.get("tiers") or {}).items():
        found += _near(usage, f" of tier {tier}")
    return found


def near(used: int, limit: int) -> tuple[float, bool]:
    """The used part of a limit, and whether it is worth a word; no limit is 0 or less."""
    part = used / limit if limit > 0 else 0.0
    return part, part >= NEAR


def _near(usage: Mapping[str, Any], where: str) -> Iterator[Finding]:
    limits = usage.get("limits") or {}
    for name, of in _LIMITS.items():
        used = max(usage.get(name, 0), usage.get(f"reserved_{name}", 0))
        limit = limits.get(of, -1)
        part, worth = near(used, limit)
        if worth:
            shown = [format_size(value) if name in ("memory", "storage") else str(value) for value in (used, limit)]
            text = f"{part:.0%} of the {name}{where} that the account may have is used: {shown[0]} of {shown[1]}"
            severity = ERROR if part >= FULL else WARNING
            yield Finding(
                severity, "account-limit", SUBJECT, text, "Raise the account's limit, or delete what is not needed"
            )


async def _denied(api: Api) -> list[Finding]:
    denied = [
        item for item in await probe(api, timeout=PATIENCE) if not item.allowed and item.reason == "permission denied"
    ]
    if not denied:
        return []
    actions = ", ".join(item.action for item in denied)
    subjects = ", ".join(f"`{item.subject}`" for item in denied)
    return [
        Finding(
            NOTE, "permissions", SUBJECT, f"Not allowed to {actions}", f"It takes permission to publish to {subjects}"
        )
    ]
