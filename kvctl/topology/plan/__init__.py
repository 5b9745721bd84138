"""Plans: the difference between desired and actual state, as ordered changes."""
