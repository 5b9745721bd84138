"""Transactions: conditions and changes on several keys, applied together or not at all."""
