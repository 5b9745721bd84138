"""Buckets (ADR-8): names, configuration, entries, the client, handles and name resolution."""
