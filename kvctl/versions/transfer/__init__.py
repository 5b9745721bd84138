"""Commits to and from live buckets and files."""
