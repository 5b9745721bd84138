"""Views of replication: drawings, and traces of keys."""
