"""Findings over connection, account, buckets and replicas, each with its evidence and what mends it."""
