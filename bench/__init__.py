"""Benchmarks: ratios measured side by side in one run. See `python -m bench --help`."""
