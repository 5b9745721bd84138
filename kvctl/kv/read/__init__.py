"""Reads of a bucket: watch, finite readings, many keys at once."""
