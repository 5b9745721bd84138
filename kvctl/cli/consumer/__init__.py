"""Commands of `kvctl consumer`."""
