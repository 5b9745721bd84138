"""Output of the key commands: entries as rows and streams, and warnings about TTLs."""
