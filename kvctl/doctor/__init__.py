"""Checks of connection, account, buckets and replicas, each finding with its evidence and its fix."""
