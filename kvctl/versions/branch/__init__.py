"""A branch: its head, its staging epochs, and the conditions on which it moves."""
