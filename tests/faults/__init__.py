"""Faults on real servers under every kind of traffic: `pytest -m faults`.

Servers run on hosts of their own, each a network namespace of this machine, so that partitions are real: both ways or
one way, between servers or between clients and servers. That needs root; without it the tests are skipped.

`--faults-report FILE` writes the figures of a run as a table.
"""
