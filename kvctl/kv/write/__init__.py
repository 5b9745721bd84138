"""Writes: single and bulk, each with an identity and an outcome."""
