"""Applying changes: create, fill, wait, promote, repair."""
