"""Spark itself: Java, session, configuration, errors, progress."""
