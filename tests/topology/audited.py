"""Audits in tests, of everything in view of a client."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import kvctl
from kvctl.topology.audit.audit import audit
from kvctl.topology.audit.verdict import AuditDifference, AuditOutcome
from kvctl.topology.survey import graph
from kvctl.topology.survey.inventory import survey

SHORTLY = timedelta(seconds=2)


async def audited(
    client: kvctl.Client, *names: str, patience: timedelta = SHORTLY, found: list[AuditDifference] | None = None
) -> list[AuditOutcome]:
    """Return the outcomes of all replicas of these names, or of these origins."""
    inventory = await survey({"": client.api})
    wanted = graph.named(inventory.replicas(), names)
    report = found.append if found is not None else lambda _: None
    return [outcome for replica in wanted for outcome in await audit(replica, patience, report=report)]


async def one(client: kvctl.Client, name: str, **settings: Any) -> AuditOutcome:
    """Return the only outcome, which has no error."""
    (outcome,) = await audited(client, name, **settings)
    assert outcome.error is None, outcome.error
    return outcome


def said(outcomes: AuditOutcome | Sequence[AuditOutcome]) -> list[tuple[str, str, str | None]]:
    """Return kind, key and cause of each sample."""
    given = [outcomes] if isinstance(outcomes, AuditOutcome) else outcomes
    return [(str(item.kind), item.key, item.cause) for outcome in given for item in outcome.sorted_samples()]
