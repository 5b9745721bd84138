"""Stream configurations in the formats of other tools: the `nats` command, Kubernetes, Terraform."""
