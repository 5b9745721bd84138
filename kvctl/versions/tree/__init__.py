"""Content-addressed trees: chunks, build, update, diff, three-way merge."""
