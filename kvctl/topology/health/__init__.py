"""Health of replicas by evidence: states, counts, arrival, overviews."""
