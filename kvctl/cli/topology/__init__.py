"""Commands of `kvctl mirror`, `kvctl aggregate` and `kvctl topology`."""
