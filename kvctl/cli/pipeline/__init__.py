"""Commands of `kvctl pipeline`."""
