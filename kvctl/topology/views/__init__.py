"""Views of replication: drawings, traces of keys, and files of other deployment tools."""
