"""Output of the key commands: entries as rows and streams, and notices about their ttl."""
