"""Versioned buckets, after lakeFS: repositories, refs, commits, diff, merge."""
