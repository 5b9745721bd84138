"""Discovery of what exists: inventory, replicas, origins, health."""
