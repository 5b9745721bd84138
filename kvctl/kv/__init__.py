"""Buckets: ADR-8's naming convention on a stream."""
