"""Many entries at once: loads with checkpoints and reconciliation, `put_many`, and dumps."""
