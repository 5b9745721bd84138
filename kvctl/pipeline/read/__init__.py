"""Readers of the data source: batch and stream."""
