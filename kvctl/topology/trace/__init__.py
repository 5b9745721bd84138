"""Traces: where a key goes through mirrors and aggregates, and where it came from."""
