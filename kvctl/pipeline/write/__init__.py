"""The data source's writers: tasks, rows, retries, overwrite."""
