"""Maintenance of repositories: garbage collection and checks."""
