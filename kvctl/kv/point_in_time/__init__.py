"""Buckets as of a revision or time."""
