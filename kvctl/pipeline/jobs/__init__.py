"""What operators do with the pipeline: one job a file, a plain function of an engine."""
