"""Graphs of what reads from what."""
