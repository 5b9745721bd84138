"""Stream and consumer configurations: as people write them, merged, changed under a lock."""
