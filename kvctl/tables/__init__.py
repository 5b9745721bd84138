"""Key-value tables (PDP-39): partitions, key families, versions, atomic batches, ordered scans."""
