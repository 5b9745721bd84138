"""Bulk load of rows and dumps: input, checkpoints, resumption, reconciliation."""
