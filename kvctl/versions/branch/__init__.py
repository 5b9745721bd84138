"""Branches: head, staging epochs, and the conditions under which a branch moves."""
