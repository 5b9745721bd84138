"""kvctl: NATS key-value buckets and the topologies that replicate them."""

__version__ = "0.1.0"
