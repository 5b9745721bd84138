"""Buckets that replicate from other buckets: subjects, origins and their notations, the topology file."""
