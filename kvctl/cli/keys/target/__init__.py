"""Target of a key command: a bucket, or `NAME@REF`, a ref of a versioned bucket."""
