"""Transactions: conditions and changes on several keys, together or not at all."""
