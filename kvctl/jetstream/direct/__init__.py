"""Direct get (ADR-31)."""
