"""Hazards: configurations and changes that silently lose, hide, duplicate or loop data."""
