"""Buckets dumped into files."""
