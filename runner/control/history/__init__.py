"""Readers of the record of a run: what cannot be read becomes a problem, and nothing raises."""
