"""Pictures of screens in docs/pictures, drawn by the commands' own functions from sample values.

`python -m tests.support.pictures` writes them; a test compares. Look at a changed one in a browser.
"""

import re
from collections.abc import Iterable
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.text import Text

from kvctl.cli import top
from kvctl.cli.bucket.details import alternates_report
from kvctl.cli.topology.audit_views import audit_report
from kvctl.cli.topology.plan import plan_text
from kvctl.cli.topology.status import status_report
from kvctl.kv.stream_kind import Kind
from kvctl.render import cards
from kvctl.topology.audit.verdict import AuditDifference, AuditOutcome, Verdict
from kvctl.topology.health.health import Health
from kvctl.topology.health.overview import AlternateStream, Reads
from kvctl.topology.health.status import FIELDS
from kvctl.topology.model.origins import Aggregate, Origin
from kvctl.topology.plan.change import ResourceChange, TopologyPlan
from kvctl.topology.survey.graph import Inventory, Place

COMMAND = "python -m tests.support.pictures"
FOLDER = Path(__file__).parents[2] / "docs" / "pictures"
WIDTH = 96
_MARGIN = 12
"""Pixels around the text."""
_FORMAT = """<svg viewBox="0 0 {terminal_width} {terminal_height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; white-space: pre;
font-size: {char_height}px; line-height: {line_height}px; }}
{styles}
</style>
<defs>{lines}</defs>
<rect fill="#1e2127" width="100%" height="100%" rx="8"/>
<g transform="translate(12, 12)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def pictures() -> dict[str, str]:
    """Return the pictures by name, as SVG."""
    return {name: _picture(name, command, parts) for name, (command, parts) in _screens().items()}


def _screens() -> dict[str, tuple[str, Iterable[RenderableType]]]:
    """Return the screens by name: the command, and what rich draws."""
    plan = plan_text(_plan(), colored=True) + "Apply it: kvctl topology apply -f t.yaml\n"
    return {
        "status": ("kvctl topology status", _parts(_status())),
        "alternates": ("kvctl bucket alternates ORDERS", _parts(_alternates())),
        "plan": ("kvctl topology plan -f t.yaml", [Text.from_ansi(plan.rstrip("\n"))]),
        "audit": ("kvctl topology audit", _parts(_audit())),
        "top": ("kvctl top", [*_top()]),
    }


def _parts(report: cards.TextReport) -> list[RenderableType]:
    return [*cards.parts(report, WIDTH)]


def _picture(name: str, command: str, parts: Iterable[RenderableType]) -> str:
    console = Console(file=StringIO(), record=True, width=WIDTH, color_system="standard", force_terminal=True)
    console.print(Text.assemble(("$ ", "dim"), (command, "bold")))
    console.print()
    for part in parts:
        console.print(part)
    svg = console.export_svg(code_format=_FORMAT, unique_id=f"kvctl-{name}")
    width, height = (float(text) + 2 * _MARGIN for text in re.findall(r'(?<=viewBox="0 0 )(\S+) ([^"]+)', svg)[0])
    svg = re.sub('viewBox="[^"]+"', f'viewBox="0 0 {width:.0f} {height:.0f}"', svg, count=1)
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


def _link(replica: str, kind: str, origin: str, state: str, lag: int | None, **more: Any) -> dict[str, Any]:
    names = {"replica": replica, "stream": replica, "kind": kind, "origin": origin, "origin_stream": f"KV_{origin}"}
    shown = {"taken": "", "lands_as": "", "part": None, "trend": None, "transforms": [], "last_seen": 0.4}
    return {**dict.fromkeys(FIELDS), **shown, **names, "state": state, "lag": lag, **more}


def _status() -> cards.TextReport:
    trend = [0, 0, 180, 420, 900, 1400, 1290, 1204]
    orders = {"origin_cluster": "lon"}
    rows = [
        _link("ORDERS_EU", "mirror", "ORDERS", "ok", 0, **orders),
        _link(
            "ORDERS_US", "mirror", "ORDERS", "behind", 1204, part=1.0, last_seen=3, trend=trend, **orders,
            evidence="at revision 3796 of 5000",
        ),
        _link("EDGE", "aggregate", "ORDERS", "ok", 0, taken="NEW.>", lands_as="orders.new.>", **orders),
        _link(
            "EDGE", "aggregate", "STOCK", "offline origin", None, taken="*.*", lands_as="stock.$2.$1", last_seen=720,
            origin_cluster="nyc", evidence="the servers of `STOCK` do not answer: nyc-1, nyc-2, nyc-3",
        ),
    ]  # fmt: skip
    state = {"messages": 5000, "bytes": 698_368, "last_seq": 5000}
    infos: Any = {"KV_ORDERS": {"config": {"name": "KV_ORDERS"}, "state": state}}
    api: Any = None
    return status_report(rows, Inventory({"": Place("", api, None, infos)}, ()))


def _alternates() -> cards.TextReport:
    found = (
        AlternateStream("ORDERS_EU", "ORDERS_EU", "mirror", "eu", None, "eu-1", Health.OK, 0, 0.2, 0.0027, True),
        AlternateStream("ORDERS", "KV_ORDERS", "origin", "lon", None, "lon-2", Health.OK, 0, None, 0.0124, False),
        AlternateStream("ORDERS_US", "ORDERS_US", "mirror", "us", None, "us-1", Health.BEHIND, 1204, 3, 0.0839, False),
        AlternateStream("ORDERS_AP", "ORDERS_AP", "mirror", "ap", None, None, Health.OFFLINE),
    )
    return alternates_report("ORDERS", Reads(found, reported=True))


def _audit() -> cards.TextReport:
    keys = ("NEW.8", "NEW.12", "NEW.16")
    missing = [AuditDifference("ORDERS", "ORDERS_US", key, Verdict.MISSING, key, 7, None) for key in keys]
    drifted = AuditOutcome("ORDERS", "ORDERS_US", Kind.MIRROR, keys=5000)
    for difference in [*missing, AuditDifference("ORDERS", "ORDERS_US", "OLD.1", Verdict.DIFFERING, "OLD.1", 9, 8)]:
        drifted.add(difference)
    return audit_report(
        [
            AuditOutcome("ORDERS", "ORDERS_EU", Kind.MIRROR, keys=5000),
            drifted,
            AuditOutcome("ORDERS", "EDGE", Kind.AGGREGATE, keys=1250),
        ]
    )


def _plan() -> TopologyPlan:
    def aggregate(keys: str) -> dict[str, Any]:
        origin = Origin("ORDERS", keys=(f"{keys}.>",), prefix=f"orders.{keys.lower()}")
        return dict(Aggregate("EDGE", (origin,)).to_stream())

    def info(config: dict[str, Any], messages: int, size: int) -> Any:
        return {"config": config, "state": {"messages": messages, "bytes": size}}

    bucket = {"name": "KV_STOCK", "subjects": ["$KV.STOCK.>"], "max_msgs_per_subject": 3}
    changed: Any = {**bucket, "max_msgs_per_subject": 4}
    recreated: Any = aggregate("DONE")
    return TopologyPlan(
        [
            ResourceChange(
                kind=Kind.BUCKET, name="STOCK", place="", stream="KV_STOCK", live=info(bucket, 1, 88), after=changed
            ),
            ResourceChange(
                kind=Kind.AGGREGATE,
                name="EDGE",
                place="",
                stream="KV_EDGE",
                live=info(aggregate("NEW"), 1251, 309_248),
                after=recreated,
                recreated=True,
            ),
        ]
    )


def _top() -> Iterable[RenderableType]:
    rows = [
        {"mark": "▸", "name": "ORDERS", "kind": "bucket", "values": 5000, "bytes": 698_368, "writes": 3.1,
         "trend": [2, 2, 3, 5, 8, 5, 3, 2], "links": "ORDERS_EU ✓  ORDERS_US ▲ 1,204  EDGE ✓"},
        {"mark": None, "name": "STOCK", "kind": "bucket", "values": 1, "bytes": 88, "writes": 0.0, "trend": None,
         "links": "EDGE ✗"},
        {"mark": None, "name": "EDGE", "kind": "aggregate", "values": 1251, "bytes": 309_248, "writes": 0.8,
         "trend": [1, 1, 2, 2, 3, 2, 1, 1], "links": "from ORDERS, STOCK"},
    ]  # fmt: skip
    states = [(" ▲ 1", "yellow"), (" ✓ 2", "green"), (" ✗ 1", "red")]
    yield cards.text(top.headline(WIDTH, "prod-hub (lon-2)", 3, 4, states, 6, "14:02:11"))
    yield ""
    yield from cards.parts(top.listed_report(rows), WIDTH)
    yield ""
    yield cards.text([(top.KEYS, "dim")])


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, svg in pictures().items():
        (FOLDER / f"{name}.svg").write_text(svg, encoding="utf-8")
