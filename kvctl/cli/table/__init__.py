"""Commands of `kvctl table`."""
