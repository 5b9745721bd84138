"""Updates of a table: batches, their conflicts, and several updates in one batch."""
