"""Key commands at `NAME@REF`, a ref of a versioned bucket."""
