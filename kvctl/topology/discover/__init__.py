"""What is there: inventory, replicas and origins, health."""
