"""Streams as the server knows them: ADR-31, ADR-37, ADR-50."""
