"""The registry of the cases, by subject, in the order of the report."""

from bench.case import CASES as _ENTERED
from bench.cases import (
    cold_start,
    consuming,
    memory,
    pipeline,
    reading,
    repositories,
    scale,
    tables,
    topologies,
    transactions,
    writing,
)

SUBJECTS = (
    cold_start, reading, writing, tables, repositories, pipeline, topologies, consuming, transactions, scale, memory,
)  # fmt: skip
CASES = {
    name: case for subject in SUBJECTS for name, case in _ENTERED.items() if case.prepare.__module__ == subject.__name__
}
