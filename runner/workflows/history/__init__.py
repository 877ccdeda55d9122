"""Workflows on the records of runs: what they were, compared and exported."""
