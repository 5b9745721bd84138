"""Safe, bounded reading of YAML and JSON documents, with line numbers for errors; checksums."""
