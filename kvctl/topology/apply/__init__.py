"""Changes applied, replicas waited for and repaired."""
