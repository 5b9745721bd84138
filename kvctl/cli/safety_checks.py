"""Safety checks that `--force` overrides, by command, for completion without importing the commands. [pure]"""

_REPLICA = (
    "shorter-history", "shorter-ttl", "ttl-not-inherited", "smaller-limits", "missing-origin", "unconnected", "cycle",
    "foreign-kind",
)  # fmt: skip
_MIRROR = ("filtered-mirror", "origin-not-direct", *_REPLICA)
_AGGREGATE = ("key-collision", *_REPLICA[1:])
_PLAN = (*_MIRROR, "key-collision", "recreated-origin", "lossy-edit", "unreachable-stream")
_EDIT = (
    "lossy-edit", "shorter-history", "shorter-ttl", "ttl-not-inherited", "smaller-limits", "unreachable-stream",
    "foreign-kind",
)  # fmt: skip

CHECKS: dict[str, tuple[str, ...]] = {
    "aggregate add-origin": _AGGREGATE,
    "aggregate create": _AGGREGATE,
    "aggregate delete": ("unreachable-stream",),
    "aggregate edit": _EDIT,
    "aggregate remove-origin": ("last-origin",),
    "bucket compact": ("lagging-replica", "unreachable-stream", "foreign-kind"),
    "bucket delete": ("unreachable-stream",),
    "bucket edit": _EDIT,
    "load": ("broken-dump", "shorter-history"),
    "mirror create": _MIRROR,
    "mirror delete": ("unreachable-stream",),
    "mirror edit": _EDIT,
    "mirror promote": ("recreated-origin", "unreachable-stream"),
    "pipeline capture": ("data-loss",),
    "pipeline load": ("shorter-history",),
    "stream delete": ("foreign-kind", "unreachable-stream"),
    "stream delete-message": ("foreign-kind",),
    "stream edit": (
        *_EDIT[:-1], "origin-not-direct", "duplicate-window", "outside-prefix", "key-collision", "foreign-kind",
    ),
    "stream purge": ("foreign-kind", "unreachable-stream"),
    "table edit": ("lossy-edit",),
    "topology apply": _PLAN,
    "topology destroy": _PLAN,
    "topology plan": _PLAN,
    "topology render": ("lossy-format",),
}  # fmt: skip
"""Command -> values of `--force`. A test compares them with the commands' own."""
