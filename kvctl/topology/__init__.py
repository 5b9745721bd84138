"""Buckets fed by other buckets."""
