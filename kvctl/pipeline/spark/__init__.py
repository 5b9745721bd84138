"""The Spark session: Java, start, configuration, errors, progress."""
