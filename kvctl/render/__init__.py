"""Rendering of results as bytes, independent of buckets."""
