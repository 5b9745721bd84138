"""Reads of many keys: listings, selections, watches, bulk get."""
