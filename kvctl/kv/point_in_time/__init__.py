"""Reading a bucket as of a revision or a time."""
