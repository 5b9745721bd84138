"""Transfers between commits and live buckets or files."""
