"""Direct get (ADR-31): one message, many at once, and the fallback for older servers."""
