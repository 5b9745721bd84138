"""Operations on complete buckets: compare, copy, compact, back up, restore."""
