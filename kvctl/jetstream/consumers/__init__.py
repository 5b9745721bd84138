"""Consumers (ADR-37): pull requests, fetch, consume, ordered reading."""
