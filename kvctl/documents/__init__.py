"""Documents: YAML and JSON read safely, and their values taken with complaints that say where."""
