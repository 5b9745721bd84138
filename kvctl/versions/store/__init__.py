"""The narrow Store: protocol, memory, JetStream."""
