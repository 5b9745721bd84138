"""Buckets as a whole: compared, copied, compacted, backed up."""
