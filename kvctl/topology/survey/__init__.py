"""Streams in view and the replication between them, as one graph."""
