"""Tables that exports and captures are stored as: Delta tables, or folders of Parquet files."""
