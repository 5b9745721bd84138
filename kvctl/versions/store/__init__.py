"""The narrow key-value Store under a repository: protocol, in memory, on JetStream."""
