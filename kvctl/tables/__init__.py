"""Key-value tables (PDP-39): partitions, key families, versions, conditional atomic batches, iterators."""
