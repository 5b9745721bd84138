"""Repositories examined and tidied."""
