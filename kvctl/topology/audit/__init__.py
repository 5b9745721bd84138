"""Audits: comparison of replicas with their origins, key by key."""
