"""The data source's readers: batch and stream."""
