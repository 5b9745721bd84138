"""Contents of replicas compared with those of their origins."""
