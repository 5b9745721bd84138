"""Configurations and changes that silently lose, hide, duplicate or loop data."""
