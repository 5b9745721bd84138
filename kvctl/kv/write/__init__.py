"""Writes of a bucket: single and bulk, each with an identity and an outcome."""
