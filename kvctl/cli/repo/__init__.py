"""Commands of `kvctl repo`, `kvctl branch` and `kvctl tag`."""
