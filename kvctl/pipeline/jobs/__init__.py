"""Spark jobs, one file each: a plain function of an engine."""
