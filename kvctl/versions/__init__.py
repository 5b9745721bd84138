"""Versioned buckets: lakeFS's metadata design on JetStream."""
