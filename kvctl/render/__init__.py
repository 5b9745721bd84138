"""Rendering of results in every format, for a terminal or a pipe, independent of buckets."""
