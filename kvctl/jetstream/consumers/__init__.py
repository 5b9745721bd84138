"""Consumers (ADR-37): pull requests and their statuses; fetch, next, consume; ordered reading."""
