"""Buckets that replicate from other buckets: the model, subject transforms, sources."""
