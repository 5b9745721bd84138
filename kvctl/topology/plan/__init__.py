"""Wanted and found state to ordered changes."""
