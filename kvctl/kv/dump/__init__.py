"""Dumps of buckets into files."""
