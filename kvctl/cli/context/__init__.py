"""Commands of `kvctl context`."""
