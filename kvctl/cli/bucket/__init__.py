"""Commands of `kvctl bucket`."""
