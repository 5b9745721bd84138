"""Commands of `kvctl stream`."""
