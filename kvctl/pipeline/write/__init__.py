"""Writers of the data source: tasks, rows, retries, overwrite."""
