"""Stream and consumer configurations: parsing, merging, and edits under a lock."""
